// Package dashboards tests what dashboards/ asks Prometheus: each expression is parsed by promtool,
// and asked of a real Prometheus that has scraped the real exporter of OpenTelemetry, fed by real
// locks. Each alert is provoked and seen firing.
package dashboards
