// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

func addressOfWeb(z *zone.Zone) string {
	addr := "gone"
	_, _ = z.Records(time.Now(), zone.Secondary{}, func(r zone.Record) error { // emit has no errors
		if string(r.Owner[:10]) == "\x03web\x04shop\x03"[:10] && r.Type == 1 {
			ip, _ := netip.AddrFromSlice(r.Data)
			addr = ip.String()
		}
		return nil
	})
	return addr
}

// TestManifestsPause checks which checks of the folder put and remove, and when the next one is to come.
func TestManifestsPause(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manifests")
	must := func(err error) {
		t.Helper()
		assert.NoError(t, err)
	}
	write := func(name, text string) { must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	web := func(addr string) {
		write("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: "+addr+"}\n")
	}
	must(os.Mkdir(dir, 0o700))
	web("10.96.0.1")
	store := zone.NewStore()
	z, err := zone.New(zone.Config{Store: store, Domain: "cluster.local."})
	must(err)
	m, err := NewManifests(Config{Folder: dir, Store: store, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	must(err)
	m.start(t.Context())
	for _, step := range []struct {
		name   string
		change func()
		pause  time.Duration
		want   string
	}{
		{"nothing", func() {}, 0, "10.96.0.1"},
		{"another address", func() { web("10.96.0.2") }, 0, "10.96.0.2"},
		{"a file without its object", func() { write("web.yaml", "") }, manifestRemoveDelay, "10.96.0.2"},
		{"the object again in time", func() { web("10.96.0.3") }, 0, "10.96.0.3"},
		{"a missing file", func() { must(os.Remove(filepath.Join(dir, "web.yaml"))) }, manifestRemoveDelay, "10.96.0.3"},
		{"another change", func() { write("other.yaml", "# half") }, manifestRemoveDelay, "10.96.0.3"},
		{"no further change", func() {}, 0, "gone"},
		{"the object again", func() { web("10.96.0.4") }, 0, "10.96.0.4"},
		{"a broken document", func() { write("web.yaml", "apiVersion: v1\nkind: [") }, 0, "10.96.0.4"},
		{"the broken document, later", func() {}, 0, "10.96.0.4"},
		{"no folder", func() { must(os.RemoveAll(dir)) }, 0, "10.96.0.4"},
		{"no folder, later", func() {}, 0, "10.96.0.4"},
		{"an empty folder", func() { must(os.Mkdir(dir, 0o700)) }, manifestRemoveDelay, "10.96.0.4"},
		{"an empty folder, later", func() {}, 0, "gone"},
	} {
		step.change()
		pause := m.check(t.Context())
		if got := addressOfWeb(z); pause != step.pause || got != step.want {
			t.Errorf("%s: address %s and a pause of %s, want %s and %s", step.name, got, pause, step.want, step.pause)
		}
	}
}
