// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/names/zone"
)

// A forward is a name whose addresses must change in this order, and never back.
type forward struct {
	w     *harness
	name  string
	addrs []string
	at    int // the last one seen
}

// pass advances the time and checks each answer.
func (f *forward) pass(d time.Duration) {
	f.w.t.Helper()
	for range d / settleTime {
		f.w.pass(settleTime)
		got := strings.TrimSuffix(askZone(f.w.t, f.w.zone, f.name), " stale")
		i := slices.Index(f.addrs[f.at:], got)
		if i < 0 {
			f.w.t.Fatalf("%s: %q after %q\n%+v", f.name, got, f.addrs[f.at], f.w.server.Requests("services"))
		}
		f.at += i
	}
}

// TestNeverBackInTime switches to a server whose cache is behind, in every possible way.
func TestNeverBackInTime(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		breaks func(w *harness)
	}{
		{name: "watch goes on there", breaks: func(w *harness) { w.server.CloseWatches() }},
		{name: "relist there", breaks: func(w *harness) { w.server.Forget() }},
		{name: "plain list there", breaks: func(w *harness) { w.server.WithoutLists(); w.server.Forget() }},
		{name: "relist after a list that broke off", breaks: func(w *harness) {
			w.server.CutLists(3)
			w.server.Forget()
			w.pass(10 * time.Second)
			w.server.CutLists(0)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.server.Put(serviceObject("other", "10.0.0.8"))
				w.server.Put(serviceObject("third", "10.0.0.9"))
				w.server.Put(serviceObject("web", "10.0.0.1"))
				behind := w.server.Put(serviceObject("web", "10.0.0.2"))
				w.server.Put(serviceObject("web", "10.0.0.3"))
				w.server.Delete(serviceObject("third", ""))
				w.start()
				w.want("web.shop.svc", "10.0.0.3")
				w.server.Lag(behind)
				tt.breaks(w)
				web := &forward{w: w, name: "web.shop.svc", addrs: []string{"10.0.0.3", "10.0.0.4"}}
				web.pass(30 * time.Second)
				w.want("third.shop.svc", "NXDOMAIN")
				w.server.Put(serviceObject("web", "10.0.0.4"))
				web.pass(time.Minute)
				w.server.Lag(0)
				web.pass(2 * time.Minute)
				w.want("web.shop.svc", "10.0.0.4")
				w.want("third.shop.svc", "NXDOMAIN")
				w.wantCalm(2)
			})
		})
	}
}

// TestFirstListBreaksOff interrupts the very first list and continues with a server that is behind.
func TestFirstListBreaksOff(t *testing.T) {
	withHarness(t, func(w *harness) {
		behind := w.server.Put(serviceObject("a", "10.0.0.1"))
		w.server.Put(serviceObject("a", "10.0.0.2"))
		w.server.Put(serviceObject("b", "10.0.0.1"))
		w.server.CutLists(2)
		w.start()
		w.want("a.shop.svc", "10.0.0.2")
		w.want("b.shop.svc", "not ready")
		w.server.Lag(behind)
		a := &forward{w: w, name: "a.shop.svc", addrs: []string{"10.0.0.2"}}
		a.pass(20 * time.Second)
		w.server.CutLists(0)
		a.pass(20 * time.Second)
		w.want("b.shop.svc", "10.0.0.1")
		if !w.isReady() {
			t.Error("not ready")
		}
	})
}

// TestFirstListPauses checks that a first list that never ends is abandoned, and replaced by a plain list after some attempts.
func TestFirstListPauses(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.StaleAfter = 5 * time.Second
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.PauseLists(true)
		w.start()
		w.want("web.shop.svc", "10.0.0.1")
		w.want("none.shop.svc", "not ready")
		w.pass(20 * time.Second)
		w.want("none.shop.svc", "not ready")
		w.wantSoon("none.shop.svc", "NXDOMAIN", 20*time.Second)
		w.wantCalm(2)
	})
}

// TestHistoryRolledBack checks that the state of a server that was restored from a backup is accepted.
func TestHistoryRolledBack(t *testing.T) {
	withHarness(t, func(w *harness) {
		copied := w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Put(serviceObject("web", "10.0.0.2"))
		w.server.Put(serviceObject("new", "10.0.0.3"))
		w.start()
		w.want("web.shop.svc", "10.0.0.2")
		w.pass(10 * time.Second)
		w.server.Rewind(copied)
		took := w.wantSoon("web.shop.svc", "10.0.0.1", 5*time.Minute)
		t.Logf("accepted after %s", took)
		w.want("new.shop.svc", "NXDOMAIN")
		w.server.Put(serviceObject("new", "10.0.0.4"))
		w.wantSoon("new.shop.svc", "10.0.0.4", resumeTime)
		w.wantCalm(2)
	})
}

// TestOldServer uses a server without support for watches with a first list and, in the second case, for bookmarks.
func TestOldServer(t *testing.T) {
	t.Parallel()
	for _, bookmarks := range []bool{true, false} {
		t.Run(fmt.Sprintf("bookmarks %t", bookmarks), func(t *testing.T) {
			withHarness(t, func(w *harness) {
				w.server.WithoutLists()
				if !bookmarks {
					w.server.WithoutBookmarks()
				}
				w.server.Put(serviceObject("web", "10.0.0.1"))
				w.start()
				w.want("web.shop.svc", "10.0.0.1")
				w.want("none.shop.svc", "NXDOMAIN")
				if !w.isReady() {
					t.Error("not ready")
				}
				before := len(w.server.Requests("services"))
				oldest := time.Duration(0)
				for i := range 60 {
					w.pass(time.Minute)
					name := fmt.Sprintf("s%d", i)
					w.server.Put(serviceObject(name, "10.0.0.1"))
					w.wantSoon(name+".shop.svc", "10.0.0.1", resumeTime)
					oldest = max(oldest, w.kind(zone.Services).Age)
				}
				n := len(w.server.Requests("services")) - before
				t.Logf("%d requests an hour, oldest state %s", n, oldest)
				if n > 300 || oldest > 100*time.Second {
					t.Errorf("%d requests an hour, oldest state %s", n, oldest)
				}
				w.wantCalm(2)
			})
		})
	}
}

// TestVersions compares servers by what they have applied: Newest is that of objects, and UpTo that up to which nothing is missing.
func TestVersions(t *testing.T) {
	withHarness(t, func(w *harness) {
		first := w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Put(namespaceObject("later")) // newer, of another kind
		w.start()
		want := func(when string, newest, upTo uint64) {
			t.Helper()
			if k := w.kind(zone.Services); k.Newest != newest || k.UpTo < upTo {
				t.Errorf("%s: newest %d, up to %d, want %d, at least %d", when, k.Newest, k.UpTo, newest, upTo)
			}
		}
		want("after the list", first, first)
		second := w.server.Put(serviceObject("web", "10.0.0.2"))
		w.pass(settleTime)
		want("after an event", second, second)
		gone := w.server.Delete(serviceObject("web", ""))
		w.pass(settleTime)
		want("after a deletion", gone, gone)
		other := w.server.Put(namespaceObject("other"))
		w.pass(3 * time.Minute)
		want("after a bookmark", gone, other)
		w.server.Rewind(second)
		w.pass(5 * time.Minute)
		if k := w.kind(zone.Services); k.Newest > second || k.UpTo >= other {
			t.Errorf("after the history was rolled back to %d: newest %d, up to %d", second, k.Newest, k.UpTo)
		}
	})
}

// TestVersionsOfNamespaces has a watch for each namespace: what both have, and the newest of any.
func TestVersionsOfNamespaces(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.Namespaces = []string{"shop", "default"}
		w.start()
		before := w.kind(zone.Services)
		newest := w.server.Put(serviceObject("web", "10.0.0.1"))
		w.pass(settleTime)
		if k := w.kind(zone.Services); k.Newest != newest || k.UpTo != before.UpTo {
			t.Errorf("newest %d, up to %d, want %d, %d", k.Newest, k.UpTo, newest, before.UpTo)
		}
	})
}
