module github.com/latchkit/latchkit/contrib/pgxlock

go 1.26.0

replace github.com/latchkit/latchkit => ../..

replace github.com/latchkit/latchkit/internal/sqltest => ../../internal/sqltest

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/latchkit/latchkit v0.0.0-00010101000000-000000000000
	github.com/latchkit/latchkit/internal/sqltest v0.0.0-00010101000000-000000000000
	github.com/redis/go-redis/v9 v9.22.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.37.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)
