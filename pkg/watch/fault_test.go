// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

// resumeTime bounds the recovery after an outage: the longest pause between attempts, plus the request.
const resumeTime = 8 * time.Second

func TestServerAbsentAtStart(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Kill()
		w.start()
		w.want("web.shop.svc", "not ready")
		w.pass(time.Minute)
		if w.isReady() {
			t.Fatal("ready without a server")
		}
		if k := w.kind(zone.Services); k.Synced || !strings.HasPrefix(k.LastError, "unreachable: ") {
			t.Errorf("counts %+v", k)
		}
		if n := strings.Count(w.log.String(), `level=WARN msg="watch failed"`); n != 3 {
			t.Errorf("%d warnings in a minute, want one for each kind\n%s", n, w.log.String())
		}
		w.server.Revive()
		w.wantSoon("web.shop.svc", "10.0.0.1", resumeTime)
		w.pass(resumeTime)
		w.want("other.shop.svc", "NXDOMAIN")
		if !w.isReady() {
			t.Error("not ready after the server started")
		}
		if n := strings.Count(w.log.String(), `msg="watch recovered"`); n != 3 {
			t.Errorf("%d recoveries logged, want 3\n%s", n, w.log.String())
		}
	})
}

func TestServerAway(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, history lost %t", away, lost), func(t *testing.T) {
				withHarness(t, func(w *harness) {
					w.server.Put(serviceObject("web", "10.0.0.1"))
					w.start()
					w.server.Kill()
					for range 10 {
						w.pass(away / 10)
						if got := strings.TrimSuffix(askZone(t, w.zone, "web.shop.svc"), " stale"); got != "10.0.0.1" {
							t.Fatalf("while the server is away: %q", got)
						}
					}
					w.server.Put(serviceObject("new", "10.0.0.2"))
					w.server.Delete(serviceObject("web", ""))
					if lost {
						w.server.Forget()
					}
					w.server.Revive()
					w.wantSoon("new.shop.svc", "10.0.0.2", resumeTime)
					w.pass(resumeTime)
					w.want("web.shop.svc", "NXDOMAIN")
					if k := w.kind(zone.Services); k.LastError != "" || k.Age > 2*resumeTime {
						t.Errorf("counts %+v", k)
					}
					w.wantCalm(2)
				})
			})
		}
	}
}

// TestUnchangedStaysConfirmed checks that the state stays confirmed while none of its objects changes, and counts the requests: in an idle
// cluster, and in one where other objects change.
func TestUnchangedStaysConfirmed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		staleAfter time.Duration
		rest, busy int // most requests an hour, of one resource
	}{
		{staleAfter: 5 * time.Second, rest: 1800, busy: 2600},
		{staleAfter: 7 * time.Second, rest: 1260, busy: 2600},
		{staleAfter: 10 * time.Second, rest: 850, busy: 2100},
		{staleAfter: 20 * time.Second, rest: 470, busy: 1150},
		{staleAfter: 30 * time.Second, rest: 240, busy: 650},
		{staleAfter: 90 * time.Second, rest: 65, busy: 170},
		{staleAfter: time.Hour, rest: 16, busy: 16},
	}
	for _, tt := range tests {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, busy %t", tt.staleAfter, busy), func(t *testing.T) {
				withHarness(t, func(w *harness) {
					w.config.StaleAfter = tt.staleAfter
					most := tt.rest
					if busy {
						w.server.Busy()
						most = tt.busy
					}
					w.start()
					oldest := time.Duration(0)
					for range 3600 {
						w.pass(time.Second)
						oldest = max(oldest, w.kind(zone.Services).Age)
						w.want("new.shop.svc", "NXDOMAIN")
					}
					n := len(w.server.Requests("services"))
					t.Logf("oldest state %s, %d requests an hour", oldest, n)
					if oldest > tt.staleAfter || n > most {
						t.Errorf("oldest state %s, %d requests, want at most %s and %d", oldest, n, tt.staleAfter, most)
					}
					if k := w.kind(zone.Services); k.Failures != 0 {
						t.Errorf("counts %+v", k)
					}
					for _, r := range w.server.Requests("services")[1:] {
						if r.Verb == "watchlist" {
							t.Errorf("a second list at %s", r.At)
						}
					}
					w.wantCalm(2)
				})
			})
		}
	}
}

// TestSilentWatch checks that a new service is not denied for longer than the staleness limit, whatever becomes silent.
func TestSilentWatch(t *testing.T) {
	t.Parallel()
	faults := []struct {
		name    string
		held    int // requests that the server records only when it resumes, with the next
		breakIt func(w *harness)
	}{
		{name: "watches", breakIt: func(w *harness) { w.server.Freeze() }},
		{name: "server for a while", held: 1, breakIt: func(w *harness) {
			w.server.Hang()
			time.AfterFunc(w.config.StaleAfter/2, w.server.Resume)
			w.server.Freeze()
		}},
	}
	for _, staleAfter := range []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, 90 * time.Second} {
		for _, tt := range faults {
			t.Run(fmt.Sprintf("%s, %s", tt.name, staleAfter), func(t *testing.T) {
				withHarness(t, func(w *harness) {
					w.config.StaleAfter = staleAfter
					w.start()
					w.pass(10 * time.Minute)
					tt.breakIt(w)
					w.server.Put(serviceObject("new", "10.0.0.2"))
					w.pass(settleTime)
					w.want("new.shop.svc", "NXDOMAIN")
					took := w.wantSoon("new.shop.svc", "10.0.0.2", staleAfter)
					t.Logf("recovered after %s", took)
					w.pass(resumeTime)
					w.want("none.shop.svc", "NXDOMAIN")
					w.wantCalm(2 + tt.held)
				})
			})
		}
	}
}

func TestServerHangs(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.start()
		w.server.Hang()
		w.pass(10 * time.Minute)
		w.want("web.shop.svc", "10.0.0.1 stale")
		w.want("none.shop.svc", "NXDOMAIN stale")
		if k := w.kind(zone.Services); k.Age < 9*time.Minute || !strings.HasPrefix(k.LastError, "unreachable: ") {
			t.Errorf("counts %+v", k)
		}
		w.server.Put(serviceObject("new", "10.0.0.2"))
		w.server.Resume()
		w.wantSoon("new.shop.svc", "10.0.0.2", 2*resumeTime)
		w.pass(2 * resumeTime)
		w.want("none.shop.svc", "NXDOMAIN")
		w.wantCalm(2)
	})
}

func TestForbidden(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Put(serviceObject("db", "None"))
		w.server.Put(sliceObject("db-1", "db", true, "10.1.0.1"))
		w.server.Refuse("endpointslices", http.StatusForbidden)
		w.start()
		if !w.isReady() {
			t.Error("not ready: it waits for the forbidden kind")
		}
		w.want("web.shop.svc", "10.0.0.1")
		w.want("none.shop.svc", "NXDOMAIN")
		w.want("db.shop.svc", "not ready")
		w.pass(time.Hour)
		k := w.kind(zone.Slices)
		if k.Synced || !strings.HasPrefix(k.LastError, "forbidden: ") {
			t.Errorf("counts %+v", k)
		}
		if n := strings.Count(w.log.String(), "watch failed"); n != 1 {
			t.Errorf("logged %d times, want once\n%s", n, w.log.String())
		}
		if n := len(w.server.Requests("endpointslices")); n < 60 || n > 121 {
			t.Errorf("%d requests in an hour, want one each 30 to 45 s", n)
		}
		w.server.Refuse("endpointslices", 0)
		w.wantSoon("db.shop.svc", "10.1.0.1", 46*time.Second)
		if k := w.kind(zone.Slices); !k.Synced || k.LastError != "" {
			t.Errorf("counts %+v", k)
		}
	})
}

// TestRefused has the server answer with an error status for a while, at the start and later.
func TestRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status int
		reason string
		heals  time.Duration
	}{
		{name: "unauthorized", status: http.StatusUnauthorized, reason: "unauthorized: ", heals: 46 * time.Second},
		{name: "busy", status: http.StatusTooManyRequests, reason: "busy: ", heals: 2 * resumeTime},
		{name: "unavailable", status: http.StatusServiceUnavailable, reason: "server error: ", heals: resumeTime},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.server.Refuse("", tt.status)
				w.start()
				w.want("web.shop.svc", "not ready")
				w.pass(time.Minute)
				if k := w.kind(zone.Services); !strings.HasPrefix(k.LastError, tt.reason) {
					t.Errorf("counts %+v", k)
				}
				if w.isReady() {
					t.Error("ready")
				}
				w.server.Refuse("", 0)
				w.wantSoon("web.shop.svc", "NXDOMAIN", tt.heals)

				w.server.Refuse("", tt.status)
				w.server.CloseWatches()
				w.server.Put(serviceObject("web", "10.0.0.1"))
				w.pass(time.Minute)
				w.server.Refuse("", 0)
				w.wantSoon("web.shop.svc", "10.0.0.1", tt.heals)
				w.wantCalm(2)
			})
		})
	}
}

// TestBrokenWatches breaks the open watches, and expects a change made at that moment soon, with few requests.
func TestBrokenWatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		breakIt func(w *harness)
	}{
		{name: "410 Gone", breakIt: func(w *harness) { w.server.Forget() }},
		{name: "garbage", breakIt: func(w *harness) { w.server.Garble() }},
		{name: "closed", breakIt: func(w *harness) { w.server.CloseWatches() }},
		{name: "connection cut", breakIt: func(w *harness) { w.server.Kill(); w.server.Revive() }},
		{name: "error event", breakIt: func(w *harness) {
			w.server.Refuse("", http.StatusInternalServerError)
			w.server.CloseWatches()
			w.pass(3 * time.Second)
			w.server.Refuse("", 0)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.server.Put(serviceObject("web", "10.0.0.1"))
				w.server.Put(serviceObject("old", "10.0.0.9"))
				w.start()
				w.pass(90 * time.Second)
				before := len(w.server.Requests(""))
				tt.breakIt(w)
				w.server.Put(serviceObject("web", "10.0.0.2"))
				w.server.Delete(serviceObject("old", ""))
				took := w.wantSoon("web.shop.svc", "10.0.0.2", resumeTime)
				w.pass(resumeTime)
				w.want("old.shop.svc", "NXDOMAIN")
				n := len(w.server.Requests("")) - before
				t.Logf("recovered after %s with %d requests", took, n)
				if n > 15 {
					t.Errorf("%d requests", n)
				}
				w.wantCalm(2)
			})
		})
	}
}

func TestServerClosesWatches(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 7 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.server.CloseAfter(after)
				w.start()
				for i := range 100 {
					name := fmt.Sprintf("s%d", i)
					w.server.Put(serviceObject(name, "10.0.0.1"))
					w.wantSoon(name+".shop.svc", "10.0.0.1", resumeTime)
					w.want("none.shop.svc", "NXDOMAIN")
					w.pass(10 * time.Second)
				}
				w.wantCalm(2)
			})
		})
	}
}
