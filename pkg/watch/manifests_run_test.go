// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/watch"
)

// swapLink makes link point to target in one step, as the kubelet does.
func swapLink(t *testing.T, target, link string) {
	t.Helper()
	assert.NoError(t, os.Symlink(target, link+"_tmp"))
	assert.NoError(t, os.Rename(link+"_tmp", link))
}

func TestManifestsEdit(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0.1")})
	w.start(zone.Config{})
	w.expect("web.shop.svc", "10.96.0.1")
	w.write("web.yaml", serviceYAML("web", "10.96.0.2")) // in place
	w.expect("web.shop.svc", "10.96.0.2")
	w.write(".web.yaml.new", serviceYAML("web", "10.96.0.3"))
	assert.NoError(t, os.Rename(w.path(".web.yaml.new"), w.path("web.yaml"))) // replaced by a new file
	w.expect("web.shop.svc", "10.96.0.3")
	assert.NoError(t, os.Rename(w.path("web.yaml"), w.path("web.yaml~"))) // through a backup file, as some editors do
	w.write("web.yaml", serviceYAML("web", "10.96.0.4"))
	w.expect("web.shop.svc", "10.96.0.4")
	w.write("app.yml", serviceYAML("app", "10.96.0.5"))
	w.expect("app.shop.svc", "10.96.0.5")
	assert.NoError(t, os.Remove(w.path("web.yaml")))
	w.expect("web.shop.svc", "NXDOMAIN")
	w.expect("app.shop.svc", "10.96.0.5")
	assert.NoError(t, os.Remove(w.path("app.yml")))
	w.expect("shop.svc", "NXDOMAIN") // the namespace ends with its last object
}

// TestManifestsKinds changes the type of a service.
func TestManifestsKinds(t *testing.T) {
	t.Parallel()
	ends := sliceYAML("web-1", "web", "10.244.0.1")
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0.1"), "ends.yaml": ends})
	w.start(zone.Config{ReverseZones: manifestZones()})
	w.expect("10-244-0-1.web.shop.svc", "NXDOMAIN")
	w.write("web.yaml", serviceYAML("web", "None"))
	w.expect("web.shop.svc", "10.244.0.1")
	w.expect("10-244-0-1.web.shop.svc", "10.244.0.1")
	w.write("web.yaml", strings.Replace(serviceYAML("web", ""), "clusterIP:", "type: ExternalName, externalName: example.com", 1))
	w.expect("web.shop.svc", "example.com.")
	w.write("web.yaml", serviceYAML("web", "10.96.0.2"))
	w.expect("web.shop.svc", "10.96.0.2")
	w.expect("1.0.244.10.in-addr.arpa. PTR", "NXDOMAIN")
}

// TestManifestsConfigMap watches a folder of links as the kubelet creates and swaps it.
func TestManifestsConfigMap(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, nil)
	version := func(n int) string {
		name := fmt.Sprintf("..2026_%d", n)
		assert.NoError(t, os.Mkdir(w.path(name), 0o700))
		w.write(name+"/web.yaml", serviceYAML("web", fmt.Sprintf("10.96.0.%d", n)))
		return name
	}
	old := version(1)
	assert.NoError(t, os.Symlink(old, w.path("..data")))
	assert.NoError(t, os.Symlink("..data/web.yaml", w.path("web.yaml")))
	w.start(zone.Config{})
	w.expect("web.shop.svc", "10.96.0.1")
	for n := 2; n < 5; n++ {
		next := version(n)
		swapLink(t, next, w.path("..data"))
		assert.NoError(t, os.RemoveAll(w.path(old)))
		w.expect("web.shop.svc", fmt.Sprintf("10.96.0.%d", n))
		old = next
	}
	w.write(old+"/web.yaml", serviceYAML("web", "10.96.0.9")) // the kubelet never does this; it is noticed anyway
	w.expect("web.shop.svc", "10.96.0.9")
	w.expectProblems()
}

// TestManifestsFolderGone removes the folder: its objects stay, and the watch resumes when it is back.
func TestManifestsFolderGone(t *testing.T) {
	t.Parallel()
	w := newFolderHarness(t, map[string]string{"web.yaml": serviceYAML("web", "10.96.0.1")})
	w.start(zone.Config{})
	assert.NoError(t, os.Rename(w.dir, w.dir+".old"))
	w.expectProblems("reading the folder: no such file or directory")
	w.expect("web.shop.svc", "10.96.0.1")
	assert.Same(t, "last error", "folder: no such file or directory", w.manifests.Stats().Kinds[0].LastError)
	assert.NoError(t, os.Mkdir(w.dir, 0o700))
	w.write("web.yaml", serviceYAML("web", "10.96.0.2"))
	w.expect("web.shop.svc", "10.96.0.2")
	w.expectProblems()
	w.write("web.yaml", serviceYAML("web", "10.96.0.3"))
	w.expect("web.shop.svc", "10.96.0.3")
}

// TestManifestsMistakes breaks and fixes documents: their objects stay.
func TestManifestsMistakes(t *testing.T) {
	t.Parallel()
	web, app := serviceYAML("web", "10.96.0.1"), serviceYAML("app", "10.96.0.2")
	const noYAML, noAddress = "---\napiVersion: [\n", "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: x}\n"
	address := `all.yaml: document 1, line 5: Service shop/web: spec.clusterIP: "x": not an IP address`
	w := newFolderHarness(t, map[string]string{"all.yaml": web + app})
	w.start(zone.Config{})

	w.write("all.yaml", web+noYAML) // the document does not name app
	w.expectProblems("all.yaml: document 2, line 7: YAML: did not find expected node content")
	w.expect("app.shop.svc", "10.96.0.2")
	w.write("all.yaml", serviceYAML("new", "10.96.0.3")+noYAML) // valid objects are served, and nothing is removed
	w.expect("new.shop.svc", "10.96.0.3")
	w.expect("web.shop.svc", "10.96.0.1")
	w.expect("app.shop.svc", "10.96.0.2")
	w.write("all.yaml", web+serviceYAML("app", "10.96.0.4")) // fixed: new is removed
	w.expect("app.shop.svc", "10.96.0.4")
	w.expect("new.shop.svc", "NXDOMAIN")

	w.write("all.yaml", noAddress) // web and the missing app stay
	w.expectProblems(address)
	w.expect("app.shop.svc", "10.96.0.4")
	w.expect("web.shop.svc", "10.96.0.1")
	w.write("other.yaml", serviceYAML("web", "10.96.0.5")) // a valid object wins over a kept one
	w.expect("web.shop.svc", "10.96.0.5")
	assert.NoError(t, os.Remove(w.path("other.yaml")))
	w.expect("web.shop.svc", "10.96.0.1")
	assert.NoError(t, os.Remove(w.path("all.yaml")))
	w.expect("web.shop.svc", "NXDOMAIN")
	w.expectProblems()
}

// TestManifestsNoGap rewrites a file, and moves an object to another file and back, while clients query its name.
func TestManifestsNoGap(t *testing.T) {
	t.Parallel()
	web := serviceYAML("web", "10.96.0.1")
	w := newFolderHarness(t, map[string]string{"a.yaml": web, "mark.yaml": serviceYAML("mark", "10.96.1.0")})
	w.start(zone.Config{})
	var asking sync.WaitGroup
	stop := make(chan struct{})
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got := w.ask("web.shop.svc"); got != "10.96.0.1" {
				t.Errorf("web: %s", got)
				return
			}
		}
	})
	for n := range 4 {
		from, to := w.path("a.yaml"), w.path("b.yaml")
		if n%2 == 1 {
			from, to = to, from
		}
		assert.NoError(t, os.Truncate(from, 0))
		assert.NoError(t, os.WriteFile(to, []byte(web), 0o600))
		marker := fmt.Sprintf("10.96.1.%d", n+1)
		w.write("mark.yaml", serviceYAML("mark", marker)) // once this is visible, earlier changes are too
		w.expect("mark.shop.svc", marker)
	}
	close(stop)
	asking.Wait()
}

// TestManifestsServiceWatch checks the reported endpoints, which do not depend on what the zone sees.
func TestManifestsServiceWatch(t *testing.T) {
	t.Parallel()
	type call struct{ Ready, Service string }
	words := func(list []netip.AddrPort) string {
		var texts []string
		for _, a := range list {
			texts = append(texts, a.String())
		}
		return strings.Join(texts, " ")
	}
	dns := func(addr string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\n" +
			"spec: {clusterIP: " + addr + ", ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]}\n"
	}
	ends := func(conditions string) string {
		return "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
			"metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}\naddressType: IPv4\n" +
			"ports: [{name: dns-tcp, port: 5353}]\nendpoints: [{addresses: [10.244.0.1]}, {addresses: [10.244.0.2], conditions: {" + conditions + "}}]\n"
	}
	calls := make(chan call, 16)
	w := newFolderHarness(t, map[string]string{"dns.yaml": dns("10.96.0.10") + ends("ready: true"), "web.yaml": serviceYAML("web", "10.96.0.1")})
	w.cfg.Store, w.cfg.Namespaces, w.cfg.Endpoints = nil, []string{"shop"}, watch.EndpointsNone
	w.cfg.ServiceWatch = &watch.ServiceWatch{
		Namespace: "kube-system", Service: "kube-dns",
		Changed: func(ready []watch.Server, service []netip.AddrPort) { calls <- call{servers(ready), words(service)} },
	}
	w.start(zone.Config{})
	isPart := func(got, old, now call) bool {
		return (got.Ready == old.Ready || got.Ready == now.Ready) && (got.Service == old.Service || got.Service == now.Service)
	}
	var before call
	for _, step := range []struct {
		name   string
		change func()
		want   call
	}{
		{name: "first", change: func() {}, want: call{"10.244.0.1:5353 10.244.0.2:5353", "10.96.0.10:53"}},
		{
			name: "terminating", change: func() { w.write("dns.yaml", dns("10.96.0.10")+ends("ready: true, terminating: true")) },
			want: call{"10.244.0.1:5353", "10.96.0.10:53"},
		},
		{
			name: "another address", change: func() { w.write("dns.yaml", dns("10.96.0.11")+ends("")) },
			want: call{"10.244.0.1:5353 10.244.0.2:5353", "10.96.0.11:53"},
		},
		{name: "slice gone", change: func() { w.write("dns.yaml", dns("10.96.0.11")) }, want: call{"", "10.96.0.11:53"}},
		{name: "service gone", change: func() { assert.NoError(t, os.Remove(w.path("dns.yaml"))) }, want: call{}},
	} {
		step.change()
		var got call
		for got = <-calls; got != step.want && isPart(got, before, step.want); { // the changes of one file can be reported one by one
			got = <-calls
		}
		assert.Same(t, step.name, step.want, got)
		before = step.want
	}
	if !w.manifests.Stats().ServiceWatch.Synced {
		t.Error("not synced")
	}
}
