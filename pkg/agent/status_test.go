// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"encoding"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// page gets a page of an agent's admin server.
func page(t *testing.T, a *agent.Agent, path string) (code int, body string) {
	t.Helper()
	r, err := http.Get("http://" + a.AdminAddr().String() + path)
	assert.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	assert.NoError(t, err)
	return r.StatusCode, string(text)
}

// TestStatusOfFailures has nothing but failures: they are queries, too.
func TestStatusOfFailures(t *testing.T) {
	t.Parallel()
	cfg := local(t, upstreamtest.New(upstreamtest.Always(upstreamtest.Action{Rcode: dns.RcodeRefused})).Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	if got := statusOf(t, a); got.Queries.HitRatio != nil || got.State != "ready" || got.Cluster != nil {
		t.Errorf("at first: %+v", got)
	}
	if r := ask(t, a, "udp", "www.test."); r.Rcode != dns.RcodeServerFailure {
		t.Fatalf("got\n%s", r)
	}
	if got := counted(t, a, 1).Queries; got.HitRatio == nil || *got.HitRatio != 0 || got.Total != 1 || got.BySource["failure"] != 1 {
		t.Errorf("after a failure: %+v", got)
	}
}

// TestStatusOfManifests has a good file and a bad one, and then no folder any more: what is wrong is named, what is good
// is served, and the agent stays ready.
func TestStatusOfManifests(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	putManifest(t, dir, "api", serviceYAML("api", "{clusterIP: 10.96.0.8, ports: [{port: 80}]}"))
	putManifest(t, dir, "bad", "apiVersion: v1\nkind: Service\nmetadata: {name: web\n")
	cfg := clusterConfig(t, dir, proctest.FreeAddr(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	proctest.Eventually(t, time.Minute, "the agent is not ready", func() bool {
		code, _ := page(t, a, "/readyz")
		return code == http.StatusOK
	})
	if r := ask(t, a, "udp", "web.shop.svc.cluster.local."); len(r.Answer) != 1 {
		t.Errorf("got\n%s", r)
	}

	s := counted(t, a, 1)
	c := s.Cluster
	if c == nil {
		t.Fatalf("no cluster in %+v", s)
	}
	if c.Source != "folder "+dir || !c.InSync || c.Domain != "cluster.local." || c.Resolver != "local" || c.Serial == 0 || c.Central != nil {
		t.Errorf("cluster %+v", c)
	}
	if k := c.Kinds[0]; k.Kind != "service" || !k.Synced || k.Age == nil || *k.Age > 0.1 || k.Objects != 2 || k.Bytes <= 0 || k.LastError != "" {
		t.Errorf("services %+v, want two in sync", k)
	}
	if len(c.Manifests) != 1 || c.Manifests[0].File != "bad.yaml" || c.Manifests[0].Document != 1 || c.Manifests[0].What == "" {
		t.Errorf("manifest problems %+v, want one in bad.yaml", c.Manifests)
	}
	if len(s.Problems) != 1 || s.Problems[0].Where != "cluster.manifests" || !strings.Contains(s.Problems[0].What, "bad.yaml") {
		t.Errorf("problems %+v, want the bad file", s.Problems)
	}
	if s.Queries.HitRatio == nil || *s.Queries.HitRatio != 1 || s.Queries.BySource["zone"] != 1 {
		t.Errorf("queries %+v, want one from the zone", s.Queries)
	}
	for _, want := range []string{
		"\nnodecache_ready 1\n",
		"\nnodecache_zone_objects{kind=\"service\"} 2\n", "\nnodecache_watch_synced{kind=\"service\"} 1\n",
		"\nnodecache_responses_total{rcode=\"NOERROR\",source=\"zone\"} 1\n",
	} {
		if _, body := page(t, a, "/metrics"); !strings.Contains(body, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	if _, body := page(t, a, "/status?format=text"); strings.Index(body, "bad.yaml") > strings.Index(body, "\nqueries\n") {
		t.Errorf("the bad file does not come first:\n%s", body)
	}

	assert.NoError(t, os.RemoveAll(dir))
	proctest.Eventually(t, time.Minute, "/status does not say that the folder is gone", func() bool {
		_, body := page(t, a, "/status?format=text")
		return strings.Contains(body, "no such file")
	})
	if code, body := page(t, a, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz without the folder: %d %s", code, body)
	}
	if r := ask(t, a, "udp", "web.shop.svc.cluster.local."); len(r.Answer) != 1 {
		t.Errorf("without the folder, got\n%s", r)
	}
	if p := statusOf(t, a).Problems; len(p) != 1 || p[0].Where != "cluster.manifests" {
		t.Errorf("problems %+v, want the folder", p)
	}
}

// TestStatusFieldsDocumented looks for each field in docs/status.md, which explains lastError once for all parts.
func TestStatusFieldsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/status.md")
	assert.NoError(t, err)
	for _, path := range fieldPaths(reflect.TypeFor[status.Status](), "") {
		list, _, _ := strings.Cut(path, "[]") // an item may explain all of a list
		if !strings.Contains(string(page), "`"+path+"`") && !strings.Contains(string(page), "`"+list+"`: ") && !strings.HasSuffix(path, ".lastError") {
			t.Errorf("docs/status.md does not explain %s", path)
		}
	}
}

// fieldPaths are the paths of what a type has when it is JSON, but of structs that
// have fields of their own.
func fieldPaths(of reflect.Type, path string) (paths []string) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if of.Kind() == reflect.Slice && hasFields(of.Elem()) {
		return fieldPaths(of.Elem(), path+"[]")
	}
	if hasFields(of) {
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			below := strings.TrimPrefix(path+"."+name, ".")
			if field.Anonymous {
				below = path
			}
			paths = append(paths, fieldPaths(field.Type, below)...)
		}
		return paths
	}
	return []string{path}
}

// hasFields reports whether a type is an object as JSON, and not a text, such as an address.
func hasFields(of reflect.Type) bool {
	return of.Kind() == reflect.Struct && !of.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
