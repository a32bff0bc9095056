// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/zone"
)

// virtualHarness runs Manifests on the test's own events, in virtual time.
type virtualHarness struct {
	t      *testing.T
	dir    string
	events chan fsnotify.Event
	errors chan error
}

// served is an address of the Service web, or "gone", and when it was first served.
type served struct {
	At   time.Duration // since the start
	Addr string
}

// virtualFolder runs body in a bubble with a watched folder, and returns the addresses of web over time.
func virtualFolder(t *testing.T, body func(*virtualHarness)) []served {
	t.Helper()
	b := &virtualHarness{t: t, dir: filepath.Join(t.TempDir(), "manifests")}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.web("10.96.0.1")
	var list []served
	synctest.Test(t, func(t *testing.T) {
		b.events, b.errors = make(chan fsnotify.Event), make(chan error)
		store := zone.NewStore()
		z, err := zone.New(zone.Config{Store: store, Domain: "cluster.local."})
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewManifests(ManifestsConfig{Folder: b.dir, Store: store, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{}, 2)
		go func() {
			m.watchFolder(ctx, folderEvents{watch: func([]string) {}, events: b.events, errors: b.errors})
			ended <- struct{}{}
		}()
		<-m.Ready()
		go func() {
			list = sample(ctx, z)
			ended <- struct{}{}
		}()
		body(b)
		cancel()
		<-ended
		<-ended
	})
	return list
}

// sample reads every 5 ms, 1 ms after everything else, and records each change of web's address.
func sample(ctx context.Context, z *zone.Zone) []served {
	start := time.Now()
	list := []served{{Addr: addressOfWeb(z)}}
	time.Sleep(time.Millisecond)
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return list
		case <-every.C:
		}
		if addr := addressOfWeb(z); addr != list[len(list)-1].Addr {
			list = append(list, served{At: time.Since(start).Truncate(5 * time.Millisecond), Addr: addr})
		}
	}
}

func addressOfWeb(z *zone.Zone) string {
	addr := "gone"
	_ = z.Records(time.Now(), func(r zone.Record) error { // emit has no errors
		if string(r.Owner[:10]) == "\x03web\x04shop\x03"[:10] && r.Type == 1 {
			ip, _ := netip.AddrFromSlice(r.Data)
			addr = ip.String()
		}
		return nil
	})
	return addr
}

func (b *virtualHarness) web(addr string) {
	b.write("web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: "+addr+"}\n")
}

func (b *virtualHarness) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *virtualHarness) removeWeb() {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.dir, "web.yaml")); err != nil {
		b.t.Fatal(err)
	}
}

func (b *virtualHarness) event(name string) {
	b.events <- fsnotify.Event{Name: filepath.Join(b.dir, name), Op: fsnotify.Write}
}

// elapse advances virtual time and runs everything that is due.
func (b *virtualHarness) elapse(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestManifestsInTime(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	first := served{Addr: "10.96.0.1"}
	for _, tt := range []struct {
		name string
		body func(*virtualHarness)
		want []served
	}{
		{
			name: "a change is served 50 ms after the last event",
			body: func(b *virtualHarness) {
				b.web("10.96.0.2")
				b.event("web.yaml")
				b.elapse(40 * ms)
				b.web("10.96.0.3")
				b.event("web.yaml")
				b.elapse(time.Second)
			},
			want: []served{first, {At: 90 * ms, Addr: "10.96.0.3"}},
		},
		{
			name: "endless events delay it by 500 ms at most",
			body: func(b *virtualHarness) {
				b.web("10.96.0.2")
				for range 30 {
					b.event(".web.yaml.swp")
					b.elapse(20 * ms)
				}
			},
			want: []served{first, {At: 500 * ms, Addr: "10.96.0.2"}},
		},
		{
			name: "a missing object is removed 500 ms later",
			body: func(b *virtualHarness) {
				b.removeWeb()
				b.event("web.yaml")
				b.elapse(2 * time.Second)
			},
			want: []served{first, {At: 550 * ms, Addr: "gone"}},
		},
		{
			name: "a file that is emptied and refilled in time keeps its objects",
			body: func(b *virtualHarness) {
				b.write("web.yaml", "")
				b.event("web.yaml")
				b.elapse(500 * ms)
				b.web("10.96.0.2")
				b.event("web.yaml")
				b.elapse(2 * time.Second)
			},
			want: []served{first, {At: 550 * ms, Addr: "10.96.0.2"}},
		},
		{
			name: "another change delays the removal",
			body: func(b *virtualHarness) {
				b.removeWeb()
				b.event("web.yaml")
				b.elapse(400 * ms)
				b.write("other.yaml", "# half")
				b.event("other.yaml")
				b.elapse(2 * time.Second)
			},
			want: []served{first, {At: 950 * ms, Addr: "gone"}},
		},
		{
			name: "an event without a change does not",
			body: func(b *virtualHarness) {
				b.removeWeb()
				b.event("web.yaml")
				b.elapse(400 * ms)
				b.event("other.yaml")
				b.elapse(2 * time.Second)
			},
			want: []served{first, {At: 550 * ms, Addr: "gone"}},
		},
		{
			name: "a broken document removes nothing",
			body: func(b *virtualHarness) {
				b.write("web.yaml", "apiVersion: v1\nkind: [")
				b.event("web.yaml")
				b.elapse(time.Minute)
			},
			want: []served{first},
		},
		{
			name: "without events it polls every 5 s",
			body: func(b *virtualHarness) {
				b.elapse(time.Second)
				b.web("10.96.0.2")
				b.elapse(6 * time.Second)
				b.removeWeb()
				b.elapse(6 * time.Second)
			},
			want: []served{first, {At: 5 * time.Second, Addr: "10.96.0.2"}, {At: 10500 * ms, Addr: "gone"}},
		},
		{
			name: "events of other folders do not matter",
			body: func(b *virtualHarness) {
				b.web("10.96.0.2")
				b.event("../other.yaml")
				b.event("sub/web.yaml")
				b.elapse(4 * time.Second)
			},
			want: []served{first},
		},
		{
			name: "lost events cause a rescan",
			body: func(b *virtualHarness) {
				b.web("10.96.0.2")
				b.errors <- fsnotify.ErrEventOverflow
				b.elapse(time.Second)
			},
			want: []served{first, {At: 50 * ms, Addr: "10.96.0.2"}},
		},
		{
			name: "a missing folder removes nothing, an empty one does",
			body: func(b *virtualHarness) {
				if err := os.RemoveAll(b.dir); err != nil {
					b.t.Fatal(err)
				}
				b.event("")
				b.elapse(time.Minute)
				if err := os.Mkdir(b.dir, 0o700); err != nil {
					b.t.Fatal(err)
				}
				b.event("")
				b.elapse(time.Second)
			},
			want: []served{first, {At: time.Minute + 550*ms, Addr: "gone"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, virtualFolder(t, tt.body)); diff != "" {
				t.Errorf("address of web (-want +got):\n%s", diff)
			}
		})
	}
}
