// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// importYAML is a ServiceImport in the namespace shop, with fields that are not used.
func importYAML(version, name, spec string) string {
	return "---\napiVersion: multicluster.x-k8s.io/" + version + "\nkind: ServiceImport\nmetadata: {name: " + name + ", namespace: shop}\n" +
		"spec: {sessionAffinity: None, " + spec + "}\nstatus: {clusters: [{cluster: east}]}\n"
}

// importedSliceYAML is a slice of a headless import, which a Service of the cluster has too.
func importedSliceYAML(cluster string) string {
	text := sliceYAML("db-"+cluster, "derived", "10.1.0.1")
	text = strings.ReplaceAll(text, "labels: {", "labels: {multicluster.kubernetes.io/service-name: db, multicluster.kubernetes.io/source-cluster: "+cluster+", ")
	return strings.ReplaceAll(text, "endpoints: [{", "endpoints: [{hostname: db-0, ")
}

// TestManifestsClusterSet serves a folder's imports, in either version, and reports the invalid ones. Without a cluster set they are other kinds.
func TestManifestsClusterSet(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"a.yaml": importYAML("v1beta1", "web", "type: ClusterSetIP, ips: [10.97.0.1], ports: [{port: 80}]"),
		"b.yaml": importYAML("v1alpha1", "db", "type: Headless, ports: [{port: 5432}]") + importedSliceYAML("east"),
		"c.yaml": importYAML("v1", "other", "type: Headless"),
		"d.yaml": importYAML("v1beta1", "bad", "type: Other"),
	}
	f := newFolderHarness(t, files)
	f.cfg.ClusterSet = zone.NewStore()
	f.start(zone.Config{})
	set, err := zone.New(zone.Config{Store: f.cfg.ClusterSet, Domain: "clusterset.local.", Cluster: f.cfg.Store, AllSlices: true})
	assert.NoError(t, err)
	want := func(name, want string) {
		t.Helper()
		f.eventually(name, []string{want}, func() []string { return []string{askZone(t, set, name+".clusterset.local.")} })
	}
	want("web.shop.svc", "10.97.0.1")
	want("db-0.east.db.shop.svc", "10.1.0.1")
	want("bad.shop.svc", "NXDOMAIN")
	f.expectProblems(
		`c.yaml: document 1, line 2: apiVersion: "multicluster.x-k8s.io/v1": not that of kind ServiceImport`,
		`d.yaml: document 1, line 5: ServiceImport shop/bad: spec.type: "Other": not a type of ServiceImport`)
	f.write("b.yaml", importYAML("v1alpha1", "db", "type: Headless, ports: [{port: 5432}]")+importedSliceYAML("west"))
	want("db-0.east.db.shop.svc", "NXDOMAIN")
	want("db-0.west.db.shop.svc", "10.1.0.1")

	off := newFolderHarness(t, files)
	off.start(zone.Config{})
	off.expectProblems()
	assert.Same(t, "the namespace, which only imports and an unused slice are in", "NODATA", off.ask("shop.svc"))
	_, result := zone.Zones{off.zone}.Answer(queryFor(t, "web.shop.svc.clusterset.local."), zone.Client{MaxSize: wire.MaxMessage}, time.Now(), nil)
	assert.Same(t, "a name of the set", zone.NotInZone, result.Verdict)
}

// queryFor is a query for an address.
func queryFor(t *testing.T, name string) *wire.Query {
	t.Helper()
	packet, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	assert.NoError(t, err)
	var q wire.Query
	q.Parse(packet)
	return &q
}
