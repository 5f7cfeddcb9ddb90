// Package otellock tests the Observer with the OpenTelemetry SDK, which the library itself must not
// import.
package otellock
