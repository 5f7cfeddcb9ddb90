// Package shop is what protoc makes of shop.proto: a service for grpclock's tests.
package shop
