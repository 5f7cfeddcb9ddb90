module github.com/latchkit/latchkit/contrib/cronlock

go 1.26.0

replace github.com/latchkit/latchkit => ../..

require (
	github.com/latchkit/latchkit v0.0.0-00010101000000-000000000000
	github.com/redis/go-redis/v9 v9.22.0
	github.com/robfig/cron/v3 v3.0.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/sys v0.37.0 // indirect
)
