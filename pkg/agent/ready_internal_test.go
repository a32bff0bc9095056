// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// readiness is the status code of /readyz and the series nodecache_ready of /metrics, from one admin server.
func readiness(t *testing.T, a *Agent) (code int, series string) {
	t.Helper()
	pages := a.servers.admin.Handler()
	get := func(path string) *httptest.ResponseRecorder {
		reply := httptest.NewRecorder()
		pages.ServeHTTP(reply, httptest.NewRequest(http.MethodGet, "http://localhost"+path, http.NoBody))
		return reply
	}
	if m := regexp.MustCompile(`(?m)^nodecache_ready (.+)$`).FindStringSubmatch(get("/metrics").Body.String()); m != nil {
		series = m[1]
	}
	return get("/readyz").Code, series
}

// TestReadySeries has one agent take over from another: of each that serves /metrics says what /readyz does, and the one that
// waits for its turn is not ready, nor the one that has had it.
func TestReadySeries(t *testing.T) {
	t.Parallel()
	cfg := handingConfig(t)
	cfg.Admin.Address = proctest.FreeAddr(t)
	m1, m2 := newFakeHost(), newFakeHost()
	m2.kernel = m1.kernel
	want := func(when string, a *Agent, wantCode int, wantSeries string) {
		t.Helper()
		if code, series := readiness(t, a); code != wantCode || series != wantSeries {
			t.Errorf("%s: /readyz %d and nodecache_ready %q, want %d and %q", when, code, series, wantCode, wantSeries)
		}
	}
	first, _ := startHanding(t, m1, cfg)
	want("serving", first, http.StatusOK, "1")
	second := agentOnHost(t, m2, cfg)
	want("waiting to take over", second, http.StatusServiceUnavailable, "0")
	want("while another one waits", first, http.StatusOK, "1")
	runNode(t, second)
	until(t, "the second one is ready", func() bool { return second.notReady() == nil })
	want("having taken over", second, http.StatusOK, "1")
	want("having handed over", first, http.StatusServiceUnavailable, "0")
}

func TestAlive(t *testing.T) {
	t.Parallel()
	for busy, want := range map[time.Duration]string{
		0: "<nil>", 59 * time.Second: "<nil>", 61400 * time.Millisecond: "a reader hangs: it has spent 1m1s on one batch of queries",
	} {
		assert.Equal(t, busy.String(), want, fmt.Sprint(hangError(busy)))
	}
}
