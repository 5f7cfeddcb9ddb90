module github.com/latchkit/latchkit/internal/sqltest

go 1.25.0

require github.com/latchkit/latchkit v0.0.0-00010101000000-000000000000

replace github.com/latchkit/latchkit => ../../
