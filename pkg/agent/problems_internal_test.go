// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestStateChanges has each change of state that an operator would want to have seen in the log, as an Event and in the timeline: when
// it begins, and when it ends.
func TestStateChanges(t *testing.T) {
	t.Parallel()
	upstreams := func(servers ...status.Server) func(*status.Status, *watch.Stats) {
		return func(s *status.Status, _ *watch.Stats) {
			for _, server := range servers {
				server.Address = fmt.Sprintf("udp://192.0.2.%d:53", 1+len(s.Upstreams))
				s.Upstreams = append(s.Upstreams, status.Upstream{Zone: ".", Server: server})
			}
		}
	}
	good, down := status.Server{State: "good"}, status.Server{State: "down", Cause: "timeout"}
	central := func(list ...status.Server) func(*status.Status, *watch.Stats) {
		return func(s *status.Status, _ *watch.Stats) {
			s.Cluster = &status.Cluster{Central: &status.Central{Service: "kube-system/kube-dns", InSync: true, Endpoints: list}}
		}
	}
	for _, tt := range []struct {
		name        string
		before, now func(*status.Status, *watch.Stats)
		want        []status.Reason
	}{
		{"an upstream is down", upstreams(good, good), upstreams(good, down), []status.Reason{status.UpstreamDown}},
		{
			"all upstreams of a route are down", upstreams(good, good), upstreams(down, down),
			[]status.Reason{status.RouteDown, status.UpstreamDown, status.UpstreamDown},
		},
		{"an upstream answers with errors", upstreams(good, good), upstreams(good, status.Server{State: "errors", Cause: "refused"}), []status.Reason{status.UpstreamErrors}},
		{"a limitation", upstreams(good), upstreams(status.Server{State: good.State, Limitations: []string{"no-tcp"}}), []status.Reason{status.UpstreamLimited}},
		{"a loop", upstreams(good, good), upstreams(good, status.Server{State: "looped"}), []status.Reason{status.UpstreamLooped}},
		{
			"the lease is lost", lease(true), lease(false), []status.Reason{status.LeaseNotHeld},
		},
		{"the central resolver has no endpoint", central(good), central(), []status.Reason{status.CentralUnusable}},
		{
			"the API server is away",
			func(s *status.Status, w *watch.Stats) {
				s.Cluster, w.Kinds = &status.Cluster{}, []watch.KindStats{{Kind: zone.Services, Synced: true}}
			},
			func(s *status.Status, w *watch.Stats) {
				s.Cluster, w.Kinds = &status.Cluster{}, []watch.KindStats{{Kind: zone.Services, Synced: true, LastError: "unreachable: dial tcp"}}
			},
			[]status.Reason{status.ObjectsStale},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			changes(t, tt.want, func(broken bool) []status.Problem {
				var s status.Status
				var watched watch.Stats
				s.Config.LastOK = true
				state := tt.before
				if broken {
					state = tt.now
				}
				state(&s, &watched)
				cluster := config.Cluster{StaleAfter: time.Minute}
				return slices.Concat(status.Problems(&s, &watched, &cluster, nil, nil), status.Notices(&s))
			})
		})
	}
	t.Run("a panic", func(t *testing.T) {
		t.Parallel()
		var p panicProblem
		now := time.Now()
		changes(t, []status.Reason{status.Panicked}, func(broken bool) []status.Problem {
			if !broken { // none for longer than a panic is shown
				now = now.Add(2 * panicShown)
				return p.update(p.seen, now)
			}
			return p.update(p.seen+1, now)
		})
	})
}

// lease is the interception with or without its lease.
func lease(held bool) func(*status.Status, *watch.Stats) {
	return func(s *status.Status, _ *watch.Stats) {
		s.Node = &status.Node{Intercept: &status.Intercept{
			Leases: []intercept.LeaseStats{{Address: netip.MustParseAddr("169.254.20.10"), Held: held, Problem: "timeout"}},
		}}
	}
}

// changes wants a state with and without problems to be reported when it begins and when it ends.
func changes(t *testing.T, want []status.Reason, problems func(broken bool) []status.Problem) {
	t.Helper()
	var log bytes.Buffer
	events := map[string]int{}
	line := timeline.New(timeline.Config{
		Log:  slog.New(slog.NewTextHandler(&log, nil)),
		Post: func(e *timeline.Event) { events[e.Reason]++ },
	})
	now := time.Now()
	for _, step := range []struct {
		after  time.Duration
		broken bool
	}{{0, false}, {timeline.Interval, true}, {timeline.Interval, true}, {2 * time.Minute, false}, {timeline.Interval, false}} {
		now = now.Add(step.after)
		line.Observe(t.Context(), now, problems(step.broken), nil)
	}
	var s status.Status
	line.Describe(&s)
	var got []status.Reason
	for _, e := range s.Timeline {
		got = append(got, e.Reason)
		if e.Since == "" || e.Until == "" {
			t.Errorf("%s: no begin or no end: %+v", e.Reason, e)
		}
	}
	slices.Sort(got)
	assert.Same(t, "timeline", want, got)
	for _, reason := range want {
		for _, text := range []string{`msg="problem began" reason=` + string(reason), `msg="problem ended" reason=` + string(reason)} {
			if !strings.Contains(log.String(), text) {
				t.Errorf("no %s in the log:\n%s", text, log.String())
			}
		}
	}
	first := string(want[0]) // others are part of it
	assert.Same(t, "events", map[string]int{first: 1, first + "Ended": 1}, events)
}
