// Package dashboards tests the queries of dashboards/. promtool parses each expression. A real
// Prometheus evaluates it, after a scrape of OpenTelemetry's exporter with data of real locks. Each
// alert is provoked, and must fire.
package dashboards
