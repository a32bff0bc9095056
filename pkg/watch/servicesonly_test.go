// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// An ownerFunc is an observer of owners only.
type ownerFunc func(owner []byte)

func (f ownerFunc) Changing()                 {}
func (f ownerFunc) OwnerChanged(owner []byte) { f(owner) }
func (f ownerFunc) Changed()                  {}

// ownersOf returns the owners that the store notifies from now on: their labels below the domain x, with dots.
func ownersOf(store *zone.Store) *proctest.Output {
	reports := new(proctest.Output)
	store.Observe([][]byte{[]byte("\x01x\x00")}, ownerFunc(func(owner []byte) {
		var text []byte
		for ; owner[0] != 0; owner = owner[1+owner[0]:] {
			text = append(append(text, owner[1:1+owner[0]]...), '.')
		}
		_, _ = reports.Write(append(text, '\n'))
	}))
	return reports
}

// TestServicesOnly checks that only services are watched, and that Ready waits for no server.
func TestServicesOnly(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.ServicesOnly, w.config.Pods = true, true
		reports := ownersOf(w.store)
		w.server.Put(serviceObject("web", "10.0.0.1"))
		w.server.Kill()
		w.start()
		if !w.isReady() {
			t.Error("not ready without a server")
		}
		if k := w.kind(zone.Services); k.Synced || reports.String() != "" {
			t.Errorf("without a server: %+v, notified %q", k, reports)
		}
		w.server.Revive()
		w.wantSoon("web.shop.svc", "10.0.0.1", 20*time.Second)
		w.server.Put(sliceObject("web-1", "web", false, "10.1.0.1"))
		w.server.Put(serviceObject("web", "10.0.0.2"))
		w.server.Delete(serviceObject("web", ""))
		w.pass(settleTime)
		const want = "web.shop.svc.x.\n1.0.0.10.in-addr.arpa.\nshop.svc.x.\nshop.pod.x.\n" +
			"web.shop.svc.x.\n1.0.0.10.in-addr.arpa.\n2.0.0.10.in-addr.arpa.\n" +
			"web.shop.svc.x.\n2.0.0.10.in-addr.arpa.\nshop.svc.x.\nshop.pod.x.\n"
		assert.Same(t, "notified", want, reports.String())
		for _, r := range w.server.Requests("") {
			if r.Resource != "services" {
				t.Errorf("a request for %s", r.Resource)
			}
		}
		assert.Equal(t, "kinds", 1, len(w.watch.Stats().Kinds))
	})
}

// TestServicesOnlyWithServiceWatch checks that Ready waits for the watched endpoints.
func TestServicesOnlyWithServiceWatch(t *testing.T) {
	withHarness(t, func(w *harness) {
		w.config.ServicesOnly, w.config.Namespaces = true, []string{"default", "shop"}
		reports := w.watchService()
		w.server.Kill()
		w.start()
		if w.isReady() {
			t.Error("ready before the endpoints were reported")
		}
		w.server.Revive()
		w.pass(20 * time.Second)
		if reports.String() == "" || !w.isReady() {
			t.Errorf("ready: %t, reported %q, want both", w.isReady(), reports)
		}
	})
}

// TestManifestsServicesOnly checks the notifications about the services in a folder.
func TestManifestsServicesOnly(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, map[string]string{
		"web.yaml": serviceYAML("web", "10.96.0.1"), "web-1.yaml": sliceYAML("web-1", "web", "10.1.0.1"),
		"shop.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n",
	})
	w.cfg.ServicesOnly, w.cfg.Endpoints, w.cfg.Pods = true, watch.EndpointsAll, true
	reports := ownersOf(w.cfg.Store)
	w.start(zone.Config{})
	w.write("web.yaml", serviceYAML("web", "10.96.0.2"))
	const want = "web.shop.svc.x.\n1.0.96.10.in-addr.arpa.\nshop.svc.x.\nshop.pod.x.\n" +
		"web.shop.svc.x.\n1.0.96.10.in-addr.arpa.\n2.0.96.10.in-addr.arpa.\n"
	w.eventually("reported", []string{want}, func() []string { return []string{reports.String()} })
	held := w.cfg.Store.Stats().Kinds
	if held[zone.Services].Objects != 1 || slices.ContainsFunc(held[1:], func(k zone.KindStats) bool { return k.Objects != 0 }) {
		t.Errorf("the store holds %+v, want one service", held)
	}
}
