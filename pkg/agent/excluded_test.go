// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
)

// dnsManifests are the Service of the DNS and a slice of it, in a namespace.
func dnsManifests(namespace, annotation string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: " + namespace + ", annotations: {" + annotation + "}}\n" +
		"spec: {clusterIP: 10.96.0.10, ports: [{name: dns-tcp, port: 53}]}\n" +
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" +
		"metadata: {name: dns-1, namespace: " + namespace + ", labels: {kubernetes.io/service-name: dns}}\naddressType: IPv4\n" +
		"ports: [{name: dns-tcp, port: 5353}]\nendpoints: [{addresses: [10.244.0.1]}]\n"
}

// putDNS writes the file called name of a folder at once.
func putDNS(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name+".yaml")
	assert.NoError(t, os.WriteFile(path+".tmp", []byte(text), 0o600))
	assert.NoError(t, os.Rename(path+".tmp", path))
}

const excludedByCalico = `projectcalico.org/natExcludeService: "true"`

// TestNodeExcludedByAnnotation has Calico leave the Service alone while the agent runs, and take it back. The same annotation on a Service
// that a tenant owns means nothing.
func TestNodeExcludedByAnnotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	putDNS(t, dir, "dns", dnsManifests("kube-system", ""))
	putDNS(t, dir, "tenant", dnsManifests("tenant", excludedByCalico))
	m, cfg := newFakeHost(), nodeConfig(t)
	m.found = dataplane.Found{Proxy: dataplane.Calico, Backend: dataplane.BackendNFTables, Early: true, Note: "Calico rewrites packets before netfilter"}
	cfg.Cluster.Manifests, cfg.Cluster.Central.Service = dir, config.ServiceName{Namespace: "kube-system", Name: "dns"}
	cfg.Intercept.Mode, cfg.Intercept.Fallback = config.ModeTransparent, config.Fallback{Central: true}
	a := agentOnHost(t, m, cfg)
	stop := runNode(t, a)
	<-a.Ready()
	service := netip.MustParseAddr("10.96.0.10")
	until(t, "the Service is known", func() bool { return slices.Contains(a.running.Load().interceptTarget().Services, service) })
	if err := a.notReady(); err == nil || !strings.Contains(err.Error(), excludedByCalico) {
		t.Errorf("notReady() = %v, want the annotation", err)
	}
	if slices.Contains(m.lines(), "rules") {
		t.Error("there are rules, though none could see a packet")
	}

	putDNS(t, dir, "dns", dnsManifests("kube-system", excludedByCalico))
	until(t, "the agent is ready", func() bool { return a.notReady() == nil })
	want := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:5353")}
	if r := m.kernel.Rules(); !r.Excluded || !slices.Equal(r.Fallback, want) || !slices.Equal(r.Services, []netip.Addr{service}) {
		t.Errorf("the rules are %+v", r)
	}
	lost := func() bool {
		return slices.ContainsFunc(a.Status().Problems, func(p status.Problem) bool {
			return p.Reason == status.NotIntercepted && strings.Contains(p.What, "lost the annotation")
		})
	}
	if s := a.Status().Node.Intercept; s.Note != "" || s.From != "central" || lost() {
		t.Errorf("the status is %+v, want no note", s)
	}

	putDNS(t, dir, "dns", dnsManifests("kube-system", ""))
	until(t, "there is a problem", lost)
	if r := m.kernel.Rules(); !r.Excluded || !slices.Equal(r.Fallback, want) {
		t.Errorf("without the annotation the rules are %+v, want those from before: Calico may not have noticed yet", r)
	}
	assert.NoError(t, stop())
	if m.kernel.Rules() == nil || slices.Contains(m.lines(), "link removed") {
		t.Error("the rules are gone at the end: no server would answer")
	}
}

// TestNodeExcludedByKey has the configuration say what no object of the cluster says.
func TestNodeExcludedByKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		found dataplane.Found
		want  bool // there are rules
	}{
		{"Antrea", dataplane.Found{Proxy: dataplane.OVS, Early: true, Note: "before netfilter"}, true},
		{"Calico", dataplane.Found{Proxy: dataplane.Calico, Early: true, Note: "before netfilter"}, true},
		{"kube-proxy too", dataplane.Found{Proxy: dataplane.NFTables}, true},
		{"no data plane", dataplane.Found{}, true},
		{"Cilium", dataplane.Found{Proxy: dataplane.Cilium, Early: true, Note: "before netfilter"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, cfg := newFakeHost(), nodeConfig(t)
			m.found = tt.found
			m.found.Backend = dataplane.BackendNFTables
			cfg.Intercept.Mode, cfg.Intercept.ServiceExcluded = config.ModeTransparent, true
			cfg.Intercept.Services = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
			if !tt.want {
				a := agentOnHost(t, m, cfg)
				runNode(t, a)
				<-a.Ready()
				if err := a.notReady(); err == nil || !strings.Contains(err.Error(), "data plane") || slices.Contains(m.lines(), "rules") {
					t.Errorf("notReady() = %v, %v", err, m.lines())
				}
				return
			}
			a, stop := serveOnHost(t, m, cfg)
			r := m.kernel.Rules()
			if !r.Excluded || r.MarkHost || !slices.Equal(r.Fallback, cfg.Intercept.Fallback.Addresses) {
				t.Errorf("the rules are %+v", r)
			}
			if note := a.Status().Node.Intercept.Note; note != "" {
				t.Errorf("note %q", note)
			}
			if err := stop(); err != nil || m.kernel.Rules() == nil {
				t.Errorf("at the end, %v: no rules are left", err)
			}
		})
	}
}
