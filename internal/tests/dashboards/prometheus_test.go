package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// observed returns an Observer, and the address of its metrics.
func observed(t *testing.T) (o locker.Observer, address string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	if o, err = otellock.New(otellock.WithMeterProvider(provider)); err != nil {
		t.Fatal(err)
	}
	site := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(site.Close)
	return o, site.Listener.Addr().String()
}

// server is a Prometheus that scrapes one address four times a second.
type server struct {
	t   *testing.T
	url string
}

// launch starts Prometheus with the given rules.
func launch(t *testing.T, scraped, rules string) server {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("no prometheus: %v; `make tools` installs it", err)
	}
	folder := t.TempDir()
	config := fmt.Sprintf(`
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: locks, static_configs: [{targets: [%q]}]}]
`, scraped)
	for name, text := range map[string]string{"prometheus.yml": config, "rules.yml": rules} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// several attempts, because another process may take the free port before Prometheus
	// listens on it
	for range 5 {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := listener.Addr().String()
		listener.Close()
		process, err := proc.Launch(exec.Command(program, "--config.file="+filepath.Join(folder, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+address, "--log.level=error"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Kill() })
		s := server{t, "http://" + address}
		if s.ready(process) {
			return s
		}
	}
	t.Fatal("Prometheus does not start")
	return server{}
}

// ready waits until the server answers. It returns false when the process has ended.
func (s server) ready(process *proc.Process) bool {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if reply, err := http.Get(s.url + "/-/ready"); err == nil {
			reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-process.Exited():
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return false
}

// get sends a GET request to the API of Prometheus, and decodes the answer into the parameter
// into.
func (s server) get(path string, into any) error {
	reply, err := http.Get(s.url + path)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	return json.NewDecoder(reply.Body).Decode(into)
}

// ask returns the number of series that an expression has at present.
func (s server) ask(expression string) (series int, err error) {
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := s.get("/api/v1/query?query="+url.QueryEscape(expression), &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("%s", answer.Error)
	}
	return len(answer.Data.Result), nil
}

// awaitAlert waits until an alert fires.
func (s server) awaitAlert(name string) {
	s.t.Helper()
	for until := time.Now().Add(time.Minute); time.Now().Before(until); <-time.After(100 * time.Millisecond) {
		var answer struct {
			Data struct {
				Alerts []struct {
					State  string
					Labels map[string]string
				}
			}
		}
		if err := s.get("/api/v1/alerts", &answer); err != nil {
			s.t.Fatal(err)
		}
		for _, a := range answer.Data.Alerts {
			if a.State == "firing" && a.Labels["alertname"] == name {
				s.t.Logf("%s fires: %v", name, a.Labels)
				return
			}
		}
	}
	s.t.Errorf("%s does not fire", name)
}
