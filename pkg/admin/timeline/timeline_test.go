// SPDX-License-Identifier: Apache-2.0

package timeline_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/admin/timeline"
)

// A harness observes once a second, and notes what is logged and posted.
type harness struct {
	*timeline.Timeline
	now  time.Time
	log  bytes.Buffer
	said []string // "SECOND log …" and "SECOND event …", in order
}

func newHarness() *harness {
	h := &harness{now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}
	began := h.now
	h.Timeline = timeline.New(timeline.Config{
		Log: slog.New(slog.NewTextHandler(&h.log, nil)),
		Post: func(e *timeline.Event) {
			kind := map[bool]string{true: "Warning", false: "Normal"}[e.Warning]
			h.said = append(h.said, fmt.Sprintf("%d event %s %s %s", int(h.now.Sub(began).Seconds()), kind, e.Reason, e.Message))
		},
	})
	return h
}

// pass lets seconds pass with the problems there.
func (h *harness) pass(t *testing.T, seconds int, problems ...status.Problem) {
	t.Helper()
	h.passFailing(t, seconds, nil, problems...)
}

func (h *harness) passFailing(t *testing.T, seconds int, failed []timeline.Failures, problems ...status.Problem) {
	t.Helper()
	began := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.Observe(t.Context(), h.now, problems, failed)
		for line := range strings.Lines(h.log.String()) {
			line = regexp.MustCompile(`^time=\S+ `).ReplaceAllString(strings.TrimSpace(line), "")
			h.said = append(h.said, fmt.Sprintf("%d log %s", int(h.now.Sub(began).Seconds()), line))
		}
		h.log.Reset()
	}
}

// count counts what was said that contains the text.
func (h *harness) count(text string) (n int) {
	for _, s := range h.said {
		if strings.Contains(s, text) {
			n++
		}
	}
	return n
}

func down(server string) status.Problem {
	return status.Problem{Reason: status.UpstreamDown, Where: "forward .", Subject: server, What: server + " is down", Hint: "check it"}
}

func routeDown() status.Problem {
	return status.Problem{Reason: status.RouteDown, Where: "forward .", What: "none is good", Hint: "check the network"}
}

// TestOutage has both upstreams of a route down for a minute.
func TestOutage(t *testing.T) {
	t.Parallel()
	h := newHarness()
	h.pass(t, 5)
	failed := []timeline.Failures{
		{Where: "forward .", Queries: 5, Clients: []status.FailedClient{{Client: "shop/web", Name: "a.test."}, {Client: "10.0.0.9", Name: "b.test."}}},
		{Where: "forward other.", Queries: 100, Clients: []status.FailedClient{{Client: "shop/db", Name: "c.test."}}},
	}
	h.passFailing(t, 60, failed, routeDown(), down("udp://192.0.2.1:53"))
	h.pass(t, 10)
	want := []string{
		`8 event Warning RouteDown forward .: none is good (hint: check the network)`,
		`8 log level=WARN msg="problem began" reason=RouteDown where="forward ." what="none is good" hint="check the network"`,
		`8 log level=WARN msg="problem began" reason=UpstreamDown where="forward ." what="udp://192.0.2.1:53 is down" hint="check it"`,
		`68 event Normal RouteDownEnded ended after 1m0s: forward .: none is good; 300 queries failed, first those of shop/web (a.test.), 10.0.0.9 (b.test.)`,
		`68 log level=INFO msg="problem ended" reason=RouteDown where="forward ." what="none is good" since=2026-11-20T10:00:06.000Z lasted=1m0s failed_queries=300 clients="[shop/web (a.test.) 10.0.0.9 (b.test.)]"`,
		`68 log level=INFO msg="problem ended" reason=UpstreamDown where="forward ." what="udp://192.0.2.1:53 is down" since=2026-11-20T10:00:06.000Z lasted=1m0s failed_queries=300 clients="[shop/web (a.test.) 10.0.0.9 (b.test.)]"`,
	}
	assert.Same(t, "said", want, h.said)
	var s status.Status
	h.Describe(&s)
	clients := failed[0].Clients
	assert.Same(t, "timeline", []status.TimelineEntry{
		{Reason: status.UpstreamDown, Where: "forward .", Subject: "udp://192.0.2.1:53", What: "udp://192.0.2.1:53 is down", Since: "2026-11-20T10:00:06Z", Until: "2026-11-20T10:01:06Z", Failed: 300, Clients: clients},
		{Reason: status.RouteDown, Where: "forward .", What: "none is good", Since: "2026-11-20T10:00:06Z", Until: "2026-11-20T10:01:06Z", Failed: 300, Clients: clients},
	}, s.Timeline)
	h.pass(t, 3601)
	s = status.Status{}
	h.Describe(&s)
	assert.Same(t, "timeline after an hour", nil, s.Timeline)
}

// TestQuiet bounds what is said about a problem that comes and goes.
func TestQuiet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		on, off             int // seconds
		rounds              int
		began, ended, times int
		entries             int
	}{
		{"a second", 1, 600, 3, 0, 0, 0, 3},
		{"once", 30, 100, 1, 1, 1, 0, 1},
		{"short and often", 1, 2, 200, 5, 5, 199, 1}, // 10 minutes
		{"every half minute", 15, 15, 20, 4, 4, 19, 1},
		{"with long pauses", 30, 90, 5, 5, 5, 0, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness()
			for range tt.rounds {
				h.pass(t, tt.on, down("udp://192.0.2.1:53"))
				h.pass(t, tt.off)
			}
			var s status.Status
			h.Describe(&s)
			times := 0
			for _, e := range s.Timeline {
				times += e.Times
			}
			if tt.ended > 0 && tt.times > 0 && h.count(" again=") != tt.ended {
				t.Error("the lines do not say how often it came back")
			}
			got := []int{h.count("problem began"), h.count("problem ended"), times, len(s.Timeline)}
			want := []int{tt.began, tt.ended, tt.times, tt.entries}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("began, ended, again, entries: %v, want %v:\n%s", got, want, strings.Join(h.said, "\n"))
			}
		})
	}
}

// TestNotice logs what needs no fix as information, without a warning Event.
func TestNotice(t *testing.T) {
	t.Parallel()
	h := newHarness()
	h.pass(t, 4, status.Problem{Reason: status.UpstreamLimited, Where: "forward .", What: "no-tcp", Hint: "nothing"})
	if len(h.said) != 2 || !strings.Contains(h.said[0], "event Normal UpstreamLimited") || !strings.Contains(h.said[1], "level=INFO") {
		t.Errorf("said %q", h.said)
	}
}

// TestBounds has more problems, clients and failures than are kept.
func TestBounds(t *testing.T) {
	t.Parallel()
	h := newHarness()
	many := func(from int) (list []status.Problem) {
		for i := range 150 {
			list = append(list, down(fmt.Sprintf("udp://192.0.2.1:%d", from+i)))
		}
		return list
	}
	failed := timeline.Failures{Where: "forward .", Queries: 1000}
	for i := range 1000 {
		failed.Clients = append(failed.Clients, status.FailedClient{Client: fmt.Sprint("pod-", i), Name: "a.test."})
	}
	h.passFailing(t, 3, []timeline.Failures{failed}, many(1000)...)
	h.pass(t, 3, many(2000)...)
	h.pass(t, 3, append(many(3000), many(4000)...)...)
	var s status.Status
	h.Describe(&s)
	if len(s.Timeline) != 200 {
		t.Errorf("%d entries, want 200", len(s.Timeline))
	}
	for _, e := range s.Timeline {
		if e.Until != "" || e.Failed != 0 {
			t.Errorf("%+v: want the problems that last", e)
			break
		}
	}
	if got := h.Current()[status.UpstreamDown]; got != 200 {
		t.Errorf("%d current problems", got)
	}
	h = newHarness()
	h.passFailing(t, 3, []timeline.Failures{failed}, down("udp://192.0.2.1:53"))
	s = status.Status{Problems: []status.Problem{down("udp://192.0.2.1:53"), routeDown()}}
	h.Describe(&s)
	if got := s.Timeline[0]; len(got.Clients) != 16 || got.Failed != 3000 {
		t.Errorf("%d clients, %d failed, want 16 and 3000", len(got.Clients), got.Failed)
	}
	assert.Same(t, "since", []string{"2026-11-20T10:00:01Z", ""}, []string{s.Problems[0].Since, s.Problems[1].Since})
	s.HideClients()
	if got := s.Timeline[0].Clients; got != nil {
		t.Errorf("clients without the token: %v", got)
	}
}
