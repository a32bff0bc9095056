// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// probed asks a server, or the agent itself, for www.test..
func probed(label, server string) config.Probe {
	p := config.DefaultProbe(label, "www.test.")
	p.Server, p.Interval, p.Timeout = server, 500*time.Millisecond, 500*time.Millisecond
	return p
}

// holds reports whether a page has each of the texts.
func holds(page string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(page, text) })
}

// TestProbes has an agent ask itself and its upstream, one of which fails, and changes one of the probes.
func TestProbes(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone("www.test. 300 IN A 192.0.2.1")).Listen(t)
	bad := upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Rcode: dns.RcodeServerFailure})).Listen(t)
	cfg := local(t, up)
	cfg.Probes = []config.Probe{
		probed("self", ""), probed("up", up.String()), probed("stream", "tcp://"+up.String()), probed("bad", bad.String()),
	}
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	check := func(label string, code int, texts ...string) {
		t.Helper()
		proctest.Eventually(t, time.Minute, "/healthcheck/"+label+" does not say "+strings.Join(texts, "…"), func() bool {
			is, body := page(t, a, "/healthcheck/"+label)
			return is == code && holds(body, texts)
		})
	}
	for _, label := range []string{"self", "up", "stream"} {
		check(label, http.StatusOK, "ok\n")
	}
	check("bad", http.StatusServiceUnavailable, "SERVFAIL for www.test. A from udp://"+bad.String()+", ", " times in a row\n")
	check("", http.StatusServiceUnavailable, "self: ok\nup: ok\nstream: ok\nbad: SERVFAIL")
	check("none", http.StatusNotFound, "no probe")

	// A probe's result is that of its last query: a good server may miss one deadline, and answers the next.
	var s status.Status
	proctest.Eventually(t, time.Minute, "/status does not say which probe is good and which is bad", func() bool {
		s = statusOf(t, a)
		return len(s.Probes) == 4 && s.Probes[0].Server == "udp://"+a.Addrs()[0].String() && s.Probes[0].State == "good" && s.Probes[0].Latency != nil &&
			s.Probes[3].State == "bad" && s.Probes[3].Failures["servfail"] >= 2 && s.Probes[3].LastError == "SERVFAIL" && s.Probes[3].Latency == nil &&
			len(s.Problems) == 1 && s.Problems[0].Where == "probe bad" && strings.HasPrefix(s.Problems[0].What, "SERVFAIL for www.test. A from ")
	})
	if s.State != "ready" {
		t.Errorf("state %s: probes are none of it", s.State)
	}
	proctest.Eventually(t, time.Minute, "/metrics do not say which probe is good and which is bad", func() bool {
		_, series := page(t, a, "/metrics")
		return holds(series, []string{
			"\nnodecache_probe_up{probe=\"self\"} 1\n", "\nnodecache_probe_up{probe=\"bad\"} 0\n", "\nnodecache_probe_duration_seconds_count{probe=\"up\"} ",
		})
	})

	failed := s.Probes[3].Failures["servfail"]
	cfg.Probes = []config.Probe{probed("bad", bad.String()), probed("up", bad.String())}
	if _, err := a.Reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	check("up", http.StatusServiceUnavailable, "SERVFAIL")
	check("self", http.StatusNotFound, "no probe")
	if got := statusOf(t, a).Probes; len(got) != 2 || got[0].Failures["servfail"] < failed {
		t.Errorf("after a reload: %+v, want that the one that stays has its counts of before, %d or more", got, failed)
	}
	cfg.Probes = nil
	if _, err := a.Reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	if code, body := page(t, a, "/healthcheck/"); code != http.StatusOK || body != "" {
		t.Errorf("without probes: %d %q", code, body)
	}
}
