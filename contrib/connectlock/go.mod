module github.com/latchkit/latchkit/contrib/connectlock

go 1.26.0

replace github.com/latchkit/latchkit => ../..

require (
	connectrpc.com/connect v1.19.1
	github.com/latchkit/latchkit v0.0.0-00010101000000-000000000000
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250707201910-8d1bb00bc6a7
	google.golang.org/grpc v1.75.0
	google.golang.org/protobuf v1.36.10
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.22.0 // indirect
	go.uber.org/atomic v1.11.0 // indirect
	golang.org/x/net v0.41.0 // indirect
	golang.org/x/sys v0.37.0 // indirect
	golang.org/x/text v0.26.0 // indirect
)
