// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// TestManifestsExamples runs the queries of examples/README.md and compares the answers.
func TestManifestsExamples(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, nil)
	w.cfg.Folder = filepath.Join("..", "..", "examples", "cluster")
	w.start(zone.Config{ReverseZones: manifestZones()})
	assert.Same(t, "problems", []string(nil), w.problems())
	readme, err := os.ReadFile(filepath.Join("..", "..", "examples", "README.md"))
	assert.NoError(t, err)
	const prompt = "$ dig @127.0.0.1 -p 1053 +short "
	asked := 0
	sessions := strings.Split(string(readme), prompt)[1:]
	for _, session := range sessions {
		session, _, _ = strings.Cut(session, "```")
		lines := strings.Split(strings.TrimRight(session, "\n"), "\n")
		asked++
		t.Run(lines[0], func(t *testing.T) {
			t.Parallel()
			got := askZone(t, w.zone, digQuestion(t, lines[0]))
			if want := strings.Join(lines[1:], " "); got != want && (want != "" || got != "NXDOMAIN") { // for which +short prints nothing
				t.Errorf("answer %s, want %s", got, want)
			}
		})
	}
	if asked < 15 {
		t.Errorf("%d questions in the README, want all of them", asked)
	}
}

// digQuestion converts the arguments of dig to a name and a type.
func digQuestion(t *testing.T, arguments string) string {
	t.Helper()
	if addr, found := strings.CutPrefix(arguments, "-x "); found {
		name, err := dns.ReverseAddr(addr)
		assert.NoError(t, err)
		return name + " PTR"
	}
	name, kind, _ := strings.Cut(arguments, " ")
	return name + ". " + kind
}

// TestManifestsProblems decodes each folder of testdata/manifests and compares its problems and the served names.
func TestManifestsProblems(t *testing.T) {
	t.Parallel()
	folders, err := filepath.Glob(filepath.Join("testdata", "manifests", "*", ""))
	assert.NoError(t, err)
	if len(folders) < 10 {
		t.Fatalf("%d folders of manifests, want all of them", len(folders))
	}
	for _, folder := range folders {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			w := newFolderHarness(t, nil)
			w.cfg.Folder, w.cfg.Endpoints, w.cfg.Pods = folder, watch.EndpointsAll, true
			w.start(zone.Config{AllSlices: true, ReverseZones: manifestZones()})
			var b strings.Builder
			for _, p := range w.manifests.Problems() {
				b.WriteString(p.String() + "\n")
				if p.Hint != "" {
					b.WriteString("  hint: " + p.Hint + "\n")
				}
			}
			b.WriteString("served:\n" + served(t, w.zone))
			assert.Golden(t, filepath.Join(folder, "want.txt"), b.String())
		})
	}
}

// served lists the cluster's names with their records.
func served(t *testing.T, z *zone.Zone) string {
	t.Helper()
	var b strings.Builder
	_, err := z.Records(time.Now(), zone.Secondary{}, func(r zone.Record) error {
		owner, _, err := dns.UnpackDomainName(r.Owner, 0)
		if err != nil || r.Type == dns.TypeSOA || r.Type == dns.TypeNS || !strings.Contains(owner, ".svc.") {
			return err
		}
		header := dns.RR_Header{Name: owner, Rrtype: r.Type, Class: dns.ClassINET, Rdlength: uint16(len(r.Data))}
		record, _, err := dns.UnpackRRWithHeader(header, r.Data, 0)
		if err != nil {
			return err
		}
		value := strings.TrimPrefix(record.String(), record.Header().String())
		b.WriteString("  " + strings.ReplaceAll(owner+" "+dns.TypeToString[r.Type]+" "+value, ".cluster.local.", "") + "\n")
		return nil
	})
	assert.NoError(t, err)
	return b.String()
}

func TestNewManifests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name string
		cfg  watch.Config
		want string
	}{
		{name: "no folder", cfg: watch.Config{Now: time.Now}, want: "manifests: no folder set"},
		{
			name: "missing folder", cfg: watch.Config{Folder: filepath.Join(dir, "none"), Now: time.Now},
			want: "reading manifests: open " + filepath.Join(dir, "none") + ": no such file or directory",
		},
		{
			name: "a file", cfg: watch.Config{Folder: file, Now: time.Now},
			want: "reading manifests: open " + file + ": not a directory",
		},
		{
			name: "service selector", cfg: watch.Config{Folder: dir, Now: time.Now, ServiceSelector: "a in"},
			want: `parsing the service selector "a in": `,
		},
		{
			name: "namespace selector", cfg: watch.Config{Folder: dir, Now: time.Now, NamespaceSelector: "!"},
			want: `parsing the namespace selector "!": `,
		},
	} {
		_, err := watch.NewManifests(tt.cfg)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.want)
		}
	}
}

// TestManifestsSelection compares with a file which objects of a folder the zone gets.
func TestManifestsSelection(t *testing.T) {
	t.Parallel()
	const head = "---\napiVersion: v1\nkind: "
	objects := head + "Service\nmetadata: {name: web, namespace: shop, labels: {tier: front}}\nspec: {clusterIP: 10.96.0.1}\n" +
		head + "Service\nmetadata: {name: db, namespace: shop}\nspec: {clusterIP: None}\n" +
		head + "Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.2}\n" +
		head + "Namespace\nmetadata: {name: shop, labels: {team: a}}\n" +
		head + "Pod\nmetadata: {name: p, namespace: shop}\nstatus: {podIP: 10.244.0.9, podIPs: [{ip: 10.244.0.9}]}\n" +
		sliceYAML("db-1", "db", "10.244.0.1") + sliceYAML("web-1", "web", "10.244.0.2") + sliceYAML("none-1", "none", "10.244.0.3")
	var all strings.Builder
	for _, tt := range []struct {
		name   string
		change func(*watch.Config)
	}{
		{"headless slices only", func(*watch.Config) {}},
		{"all slices", func(c *watch.Config) { c.Endpoints = watch.EndpointsAll }},
		{"no slices", func(c *watch.Config) { c.Endpoints = watch.EndpointsNone }},
		{"pods", func(c *watch.Config) { c.Pods = true }},
		{"namespaces", func(c *watch.Config) { c.Namespaces = []string{"default"} }},
		{"namespace selector", func(c *watch.Config) { c.NamespaceSelector = "team=a" }},
		{"namespace without a document by its name", func(c *watch.Config) { c.NamespaceSelector = "kubernetes.io/metadata.name=default" }},
		{"service selector", func(c *watch.Config) { c.ServiceSelector = "tier=front" }},
		{"slices go with their services", func(c *watch.Config) { c.Endpoints, c.ServiceSelector = watch.EndpointsAll, "tier=front" }},
	} {
		w := newFolderHarness(t, map[string]string{"all.yaml": objects})
		tt.change(&w.cfg)
		mode := zone.PodsInsecure
		if w.cfg.Pods {
			mode = zone.PodsVerified
		}
		w.start(zone.Config{AllSlices: w.cfg.Endpoints == watch.EndpointsAll, Pods: mode, ReverseZones: manifestZones()})
		all.WriteString("# " + tt.name + "\n")
		for _, question := range []string{
			"shop.svc", "web.shop.svc", "10-244-0-2.web.shop.svc", "db.shop.svc", "default.svc", "web.default.svc", "10-244-0-8.shop.pod", "10-244-0-9.shop.pod",
			"1.0.244.10.in-addr.arpa. PTR", "2.0.244.10.in-addr.arpa. PTR", "3.0.244.10.in-addr.arpa. PTR",
		} {
			all.WriteString(question + ": " + w.ask(question) + "\n")
		}
	}
	assert.Golden(t, filepath.Join("testdata", "selection.txt"), all.String())
}

func TestManifestsStats(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0.1") + serviceYAML("app", "10.96.0.2")})
	w.cfg.Pods = true
	m, err := watch.NewManifests(w.cfg)
	assert.NoError(t, err)
	if got := m.Stats().Kinds[0].Synced; got {
		t.Error("synced before Run")
	}
	w.start(zone.Config{})
	type row struct {
		Kind   zone.Kind
		Synced bool
		Events uint64
		Error  string
	}
	rows := func() []row {
		var list []row
		for _, k := range w.manifests.Stats().Kinds {
			list = append(list, row{k.Kind, k.Synced, k.Events, k.LastError})
		}
		return list
	}
	want := []row{{zone.Services, true, 2, ""}, {zone.Slices, true, 0, ""}, {zone.Namespaces, true, 1, ""}, {zone.Pods, true, 0, ""}}
	assert.Same(t, "stats", want, rows())
	w.write("web.yaml", serviceYAML("web", "10.96.0.3"))
	w.expect("app.shop.svc", "NXDOMAIN")
	want[0].Events = 4 // one put, one deleted
	assert.Same(t, "stats after a change", want, rows())
	arrived := uint64(0)
	for _, n := range w.manifests.Stats().Kinds[0].Arrival.Counts {
		arrived += n
	}
	if arrived != 1 {
		t.Errorf("%d times of arrival, want 1: that of the change", arrived)
	}
}

func TestManifestsLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0")})
	w.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	m, err := watch.NewManifests(w.cfg)
	assert.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	<-m.Ready()
	cancel()
	assert.NoError(t, <-ended)
	const want = `level=WARN msg="manifest problem" folder=`
	if got := log.String(); strings.Count(got, want) != 1 || !strings.Contains(got, `file=web.yaml document=1 line=5`) {
		t.Errorf("log:\n%s\nwant one line with %s", got, want)
	}
}

// TestManifestsUnreadable covers files that cannot be read, or that never end.
func TestManifestsUnreadable(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0.1"), "notes.txt": "no manifest", ".hidden.yaml": "no: [manifest"})
	assert.NoError(t, os.Symlink("nowhere", w.path("dangling.yaml")))
	assert.NoError(t, os.Mkdir(w.path("folder.yaml"), 0o700))
	w.write("folder.yaml/inner.yaml", serviceYAML("inner", "10.96.0.9"))
	w.write("kustomization.yaml", "resources: [web.yaml]\n")
	assert.NoError(t, syscall.Mkfifo(w.path("pipe.yaml"), 0o600))
	w.write("huge.yaml", "")
	assert.NoError(t, os.Truncate(w.path("huge.yaml"), 33<<20))
	w.start(zone.Config{})
	want := []string{
		"dangling.yaml: reading the file: no such file or directory",
		"huge.yaml: reading the file: larger than 32 MiB",
		"pipe.yaml: reading the file: not a regular file",
	}
	assert.Same(t, "problems", want, w.problems())
	w.expect("web.shop.svc", "10.96.0.1")
	w.expect("inner.shop.svc", "NXDOMAIN") // a file in a subfolder
}
