// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/metrics"
)

// scrape asks the handler of a collector with a header's name and value, if given.
func scrape(t *testing.T, c *metrics.Collector, log *slog.Logger, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	h, err := metrics.Handler(c, log)
	assert.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	t.Parallel()
	w := scrape(t, collector(distinct()), nil)
	if w.Code != http.StatusOK {
		t.Errorf("status %d, want 200", w.Code)
	}
	for _, want := range []string{
		"\nnodecache_cache_hits_total 2000\n",     // ours
		"\ngo_goroutines ", "\nprocess_open_fds ", // the runtime's and the process'
		"\npromhttp_metric_handler_errors_total{cause=\"gathering\"} 0\n",
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the scrape has no %q", want)
		}
	}
}

// TestHandlerEncodings lets no client fill the log with encodings that are not to be had.
func TestHandlerEncodings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ accept, want string }{
		{"gzip", "gzip"},
		{"zstd, gzip;q=0.5", "gzip"},
		{"zstd", ""},
		{"no-such-encoding", ""},
	} {
		t.Run(tc.accept, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			w := scrape(t, collector(distinct()), slog.New(slog.NewTextHandler(&log, nil)), "Accept-Encoding", tc.accept)
			if got := w.Header().Get("Content-Encoding"); w.Code != http.StatusOK || got != tc.want {
				t.Errorf("status %d, encoding %q, want 200 and %q", w.Code, got, tc.want)
			}
			if log.Len() > 0 {
				t.Errorf("logged: %s", log.String())
			}
		})
	}
}

// TestHandlerFormats serves OpenMetrics to a scraper that asks for it.
func TestHandlerFormats(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ accept, want, bucket, end string }{
		{"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "application/openmetrics-text; version=1.0.0", `le="1.0"`, "\n# EOF\n"},
		{"text/plain;version=0.0.4", "text/plain; version=0.0.4", `le="1"`, "\n"},
	} {
		w := scrape(t, collector(distinct()), nil, "Accept", tc.accept)
		body := w.Body.String()
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, tc.want) {
			t.Errorf("format %q, want %q", got, tc.want)
		}
		if bucket := `nodecache_request_duration_seconds_bucket{source="stale",` + tc.bucket; !strings.Contains(body, bucket) || !strings.HasSuffix(body, tc.end) {
			t.Errorf("%s has no %s, or does not end with %q", tc.want, bucket, tc.end)
		}
	}
}

// TestHandlerSurvivesPanic has a defect in the function that reads the sample.
func TestHandlerSurvivesPanic(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := scrape(t, metrics.New(func() metrics.Sample { panic("no stats today") }), slog.New(slog.NewTextHandler(&log, nil)))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "\ngo_goroutines ") {
		t.Errorf("status %d, want 200 with the other collectors' series", w.Code)
	}
	if !strings.Contains(log.String(), "no stats today") {
		t.Errorf("the log lacks the panic:\n%s", log.String())
	}
}

func TestTwoHandlers(t *testing.T) {
	t.Parallel()
	c := collector(metrics.Sample{Version: "a"})
	if _, err := metrics.Handler(c, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := metrics.Handler(c, nil); err != nil {
		t.Errorf("a second handler for the same collector: %v, want a registry for each", err)
	}
}
