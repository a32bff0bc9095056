// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// folderHarness is a folder of manifests, and a zone over the store that they fill.
type folderHarness struct {
	t         *testing.T
	dir       string
	cfg       watch.Config
	manifests *watch.Manifests
	zone      *zone.Zone
}

// newFolderHarness creates a folder with these files, by name.
func newFolderHarness(t *testing.T, files map[string]string) *folderHarness {
	t.Helper()
	w := &folderHarness{t: t, dir: filepath.Join(t.TempDir(), "manifests")}
	require(t, os.Mkdir(w.dir, 0o700))
	w.cfg = watch.Config{Folder: w.dir, Store: zone.NewStore(), Endpoints: watch.EndpointsHeadless, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for name, text := range files {
		w.write(name, text)
	}
	return w
}

// start watches the folder until the test ends. When it returns, all objects are served.
func (w *folderHarness) start(zoned zone.Config) {
	w.t.Helper()
	m, err := watch.NewManifests(w.cfg)
	require(w.t, err)
	w.manifests = m
	if w.cfg.Store != nil {
		zoned.Store, zoned.Domain, zoned.TTL = w.cfg.Store, "cluster.local.", 5*time.Second
		zoned.StaleAfter = time.Minute
		w.zone, err = zone.New(zoned)
		require(w.t, err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	<-m.Ready()
}

func (w *folderHarness) path(name string) string { return filepath.Join(w.dir, name) }

func (w *folderHarness) write(name, text string) {
	w.t.Helper()
	require(w.t, os.WriteFile(w.path(name), []byte(text), 0o600))
}

// ask is askZone for the zone that the folder fills.
func (w *folderHarness) ask(question string) string {
	w.t.Helper()
	return askZone(w.t, w.zone, question)
}

// expect waits for an answer. The timeout is long, because only a failing test reaches it.
func (w *folderHarness) expect(question, want string) {
	w.t.Helper()
	w.eventually(question, []string{want}, func() []string { return []string{w.ask(question)} })
}

// expectProblems waits for a list of problems.
func (w *folderHarness) expectProblems(want ...string) {
	w.t.Helper()
	w.eventually("problems", want, w.problems)
}

func (w *folderHarness) problems() []string {
	var list []string
	for _, p := range w.manifests.Problems() {
		list = append(list, p.String())
	}
	return list
}

func (w *folderHarness) eventually(what string, want []string, get func() []string) {
	w.t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		got := get()
		diff := cmp.Diff(want, got)
		if diff == "" {
			return
		}
		select {
		case <-limit.C:
			w.t.Fatalf("%s (-want +got):\n%s", what, diff)
		case <-poll.C:
		}
	}
}

// same compares what a test wants with what it got.
func same[T any](tb testing.TB, what string, want, got T, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func require(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serviceYAML returns a Service with an address in the namespace shop.
func serviceYAML(name, addr string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: {clusterIP: " + addr + "}\n"
}

// sliceYAML returns an EndpointSlice with one endpoint of a Service in the namespace shop.
func sliceYAML(name, service, addr string) string {
	return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
		"metadata: {name: " + name + ", namespace: shop, labels: {kubernetes.io/service-name: " + service + "}}\n" +
		"addressType: IPv4\nendpoints: [{addresses: [" + addr + "]}]\n"
}

// manifestRanges are the ranges of the tests' addresses.
func manifestRanges() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10:96::/112"), netip.MustParsePrefix("fd00:10:244::/56"),
	}
}
