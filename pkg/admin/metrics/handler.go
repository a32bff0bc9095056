// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxScrapes bounds concurrent scrapes; further ones get 503.
const maxScrapes = 4

// Handler serves the metrics of c, of the Go runtime, and of the process from its own registry. Metrics that
// cannot be read are left out, counted in promhttp_metric_handler_errors_total, and logged. A nil log is
// silent.
func Handler(c *Collector, log *slog.Logger) (http.Handler, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	registry := prometheus.NewRegistry()
	for _, each := range []prometheus.Collector{
		c,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(each); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		Registry:            registry,
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelError),
		MaxRequestsInFlight: maxScrapes,
		EnableOpenMetrics:   true,
		OfferedCompressions: []promhttp.Compression{promhttp.Identity, promhttp.Gzip},
	}), nil
}
