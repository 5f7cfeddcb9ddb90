// Package dashboards tests the queries of dashboards/. promtool parses each expression. A real
// Prometheus scrapes OpenTelemetry's exporter, which has the data of real locks, and evaluates each
// expression. The tests provoke the cause of each alert, and the alert must fire.
package dashboards
