// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/config"
)

// swap replaces a folder's files as the kubelet does: with a new folder, and the link ..data moved to it.
func swap(t *testing.T, folder, version string, files map[string]string) {
	t.Helper()
	behind := filepath.Join(folder, version)
	assert.NoError(t, os.Mkdir(behind, 0o755))
	for name, text := range files {
		write(t, filepath.Join(behind, name), text)
		link := filepath.Join(folder, name)
		if err := os.Symlink(filepath.Join(dataLink, name), link); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	previous, _ := os.Readlink(filepath.Join(folder, dataLink))
	assert.NoError(t, os.Symlink(version, filepath.Join(folder, "..data_tmp")))
	assert.NoError(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, dataLink)))
	if previous == "" {
		return
	}
	for _, name := range kubeDNSFiles() {
		if _, kept := files[name]; !kept {
			_ = os.Remove(filepath.Join(folder, name))
		}
	}
	assert.NoError(t, os.RemoveAll(filepath.Join(folder, previous)))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// routes formats the routes of a configuration.
func routes(cfg config.Config) (words []string) {
	for _, r := range cfg.Forward {
		words = append(words, fmt.Sprintf("%s %v %s min %s ca %q", r.Zone, r.To, r.Policy, r.MinTTL, r.CA))
	}
	return words
}

// TestMerged merges kube-dns folders into configurations.
func TestMerged(t *testing.T) {
	t.Parallel()
	const (
		base = "cache: {minTTL: 3s}\nforward:\n- {zone: \".\", to: [192.0.2.1]}\n" +
			"- {zone: corp.example, to: [\"tls://192.0.2.2#dns.example\"], policy: random, minTTL: 9s}\n"
		own = "cluster: {resolver: local, kubeconfig: /none}\n"
	)
	tests := []struct {
		name  string
		text  string
		files map[string]string
		want  []string
		err   string
	}{
		{name: "no files", text: base, want: []string{`. [192.0.2.1] fastest min 3s ca ""`, `corp.example. [tls://192.0.2.2#dns.example] random min 9s ca ""`}},
		{
			name: "a zone more", text: base, files: map[string]string{"stubDomains": `{"new.example": ["192.0.2.9", "192.0.2.10:5353"]}`},
			want: []string{`. [192.0.2.1] fastest min 3s ca ""`, `corp.example. [tls://192.0.2.2#dns.example] random min 9s ca ""`, `new.example. [192.0.2.9 192.0.2.10:5353] fastest min 3s ca ""`},
		},
		{
			name: "a zone that is there", text: base, files: map[string]string{"stubDomains": `{"CORP.example.": ["192.0.2.9"]}`},
			want: []string{`. [192.0.2.1] fastest min 3s ca ""`, `corp.example. [192.0.2.9] random min 9s ca ""`},
		},
		{
			name: "all the rest", text: base, files: map[string]string{"upstreamNameservers": `["192.0.2.9"]`},
			want: []string{`. [192.0.2.9] fastest min 3s ca ""`, `corp.example. [tls://192.0.2.2#dns.example] random min 9s ca ""`},
		},
		{name: "no JSON", text: base, files: map[string]string{"stubDomains": "example.com"}, err: "not a JSON object"},
		{name: "no address", text: base, files: map[string]string{"upstreamNameservers": `["300.1.1.1"]`}, err: "300.1.1.1"},
		{name: "the cluster's own domain", text: own, files: map[string]string{"stubDomains": `{"cluster.local": ["192.0.2.9"]}`}, err: "cluster.local"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file, folder := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "dns")
			write(t, file, tt.text)
			assert.NoError(t, os.Mkdir(folder, 0o755))
			swap(t, folder, "..1", tt.files)
			w := newHarness(t, Config{File: file, KubeDNS: folder})
			cfg, _, err := w.Load(t.Context())
			switch {
			case tt.err == "" && err != nil, tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || !strings.Contains(err.Error(), folder)):
				t.Fatalf("error %v, want %q", err, tt.err)
			case err != nil:
				return
			}
			assert.Same(t, "routes", tt.want, routes(cfg))
		})
	}
}

// TestReachable distinguishes unreadable from invalid sources.
func TestReachable(t *testing.T) {
	t.Parallel()
	folder, kept := t.TempDir(), keepGood(t)
	good, bad := filepath.Join(folder, "good.yaml"), filepath.Join(folder, "bad.yaml")
	write(t, good, size(3))
	write(t, bad, "cache: {sise: 1Mi}\n")
	missing := filepath.Join(folder, "missing")
	tests := []struct {
		name string
		cfg  Config
		want bool
	}{
		{name: "good", cfg: Config{File: good, KubeDNS: folder}, want: true},
		{name: "bad", cfg: Config{File: bad, KubeDNS: folder}, want: true},
		{name: "no file", cfg: Config{File: missing, KubeDNS: folder}},
		{name: "no kube-dns folder", cfg: Config{File: good, KubeDNS: missing}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.LastGood = kept
			w := newHarness(t, tt.cfg)
			if _, _, err := w.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
			assert.Same(t, "reachable", tt.want, w.Status().Reachable)
		})
	}
}

// TestOverlay removes the options that belong to the replaced upstreams of a route.
func TestOverlay(t *testing.T) {
	t.Parallel()
	r := config.DefaultRoute("example.com.")
	r.CA, r.Bootstrap, r.Rate = "/ca.pem", []netip.Addr{netip.MustParseAddr("192.0.2.1")}, 7
	before := []config.Route{r}
	to, err := config.Parse([]byte("forward: [{zone: \".\", to: [192.0.2.9]}]\n"), config.Agent)
	assert.NoError(t, err)
	got := overlay(before, config.Route{Zone: "example.com.", To: to.Forward[0].To}, &config.Cache{})
	if len(got) != 1 || got[0].CA != "" || got[0].Bootstrap != nil || got[0].Rate != 7 {
		t.Errorf("got %+v", got)
	}
}

// TestKubeDNSWatched changes a mounted folder and the file beside it.
func TestKubeDNSWatched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "dns")
	assert.NoError(t, os.Mkdir(folder, 0o755))
	write(t, file, size(3))
	swap(t, folder, "..1", map[string]string{"stubDomains": `{"a.example": ["192.0.2.9"]}`})
	w := newHarness(t, Config{File: file, KubeDNS: folder})
	defer w.begin(t)()
	w.expect(t, "at the start", "loaded 3")
	for _, step := range []struct {
		name, want string
		do         func()
	}{
		{"a swap", "applied 3", func() {
			swap(t, folder, "..2", map[string]string{"stubDomains": `{"a.example": ["192.0.2.10"]}`})
		}},
		{"a mistake", "refused kube-dns folder", func() { swap(t, folder, "..3", map[string]string{"stubDomains": `{"a.example"`}) }},
		{"corrected", "applied 3", func() { swap(t, folder, "..4", map[string]string{"stubDomains": `{"a.example": ["192.0.2.10"]}`}) }},
		{"the file", "applied 4", func() { write(t, file, size(4)) }},
		{"no keys any more", "applied 4", func() { swap(t, folder, "..5", nil) }},
		{"written in place", "applied 4", func() {
			write(t, filepath.Join(folder, "..5", "upstreamNameservers"), `["192.0.2.11"]`)
			swap(t, folder, "..6", map[string]string{"upstreamNameservers": `["192.0.2.11"]`})
		}},
		{"no folder any more", "refused reading the kube-dns folder", func() {
			assert.NoError(t, os.RemoveAll(folder))
		}},
	} {
		began := time.Now()
		step.do()
		// A step that changes several files may be read, and reported, before its last change.
		proctest.Eventually(t, time.Minute, step.name, func() bool { return strings.Contains("; "+w.saying(), "; "+step.want) })
		w.reports()
		t.Logf("%s: reported after %s", step.name, time.Since(began).Round(time.Millisecond))
	}
}

// TestParseObject parses names of ConfigMaps.
func TestParseObject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]types.NamespacedName{
		"kube-system/node-cache": watched(),
		"a/b.c":                  {Namespace: "a", Name: "b.c"},
		"":                       {}, "node-cache": {}, "/node-cache": {}, "kube-system/": {}, "a/b/c": {}, "a/b,metadata.name=c": {}, "a b/c": {}, "../b": {}, "a/..": {},
	} {
		got, err := ParseObject(text)
		if got != want || (err == nil) != (want != types.NamespacedName{}) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}
