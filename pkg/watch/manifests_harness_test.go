// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
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
	assert.NoError(t, os.Mkdir(w.dir, 0o700))
	w.cfg = watch.Config{Folder: w.dir, Store: zone.NewStore(), Endpoints: watch.EndpointsHeadless, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	for name, text := range files {
		w.write(name, text)
	}
	return w
}

// start watches the folder until the test ends. When it returns, all objects are served.
func (f *folderHarness) start(zoned zone.Config) {
	f.t.Helper()
	m, err := watch.NewManifests(f.cfg)
	assert.NoError(f.t, err)
	f.manifests = m
	if f.cfg.Store != nil {
		zoned.Store, zoned.Domain, zoned.TTL = f.cfg.Store, "cluster.local.", 5*time.Second
		zoned.StaleAfter = time.Minute
		f.zone, err = zone.New(zoned)
		assert.NoError(f.t, err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("Run: %v", err)
		}
	})
	<-m.Ready()
}

func (f *folderHarness) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folderHarness) write(name, text string) {
	f.t.Helper()
	assert.NoError(f.t, os.WriteFile(f.path(name), []byte(text), 0o600))
}

// ask is askZone for the zone that the folder fills.
func (f *folderHarness) ask(question string) string {
	f.t.Helper()
	return askZone(f.t, f.zone, question)
}

// expect waits for an answer. The timeout is long, because only a failing test reaches it.
func (f *folderHarness) expect(question, want string) {
	f.t.Helper()
	f.eventually(question, []string{want}, func() []string { return []string{f.ask(question)} })
}

// expectProblems waits for a list of problems.
func (f *folderHarness) expectProblems(want ...string) {
	f.t.Helper()
	f.eventually("problems", want, f.problems)
}

func (f *folderHarness) problems() []string {
	var list []string
	for _, p := range f.manifests.Problems() {
		list = append(list, p.String())
	}
	return list
}

func (f *folderHarness) eventually(what string, want []string, get func() []string) {
	f.t.Helper()
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
			f.t.Fatalf("%s (-want +got):\n%s", what, diff)
		case <-poll.C:
		}
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

// manifestZones are the reverse zones of the tests' addresses: 10.0.0.0/8, fd00:10:96::/112 and fd00:10:244::/56.
func manifestZones() []string {
	return []string{
		"10.in-addr.arpa.", "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.", "0.0.4.4.2.0.0.1.0.0.0.0.d.f.ip6.arpa.",
	}
}
