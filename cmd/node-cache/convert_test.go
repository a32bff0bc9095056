// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestConvert(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	corefile := func(name, text string) string {
		path := filepath.Join(folder, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	whole := corefile("whole", ".:53 {\n  bind 127.0.0.1\n  forward . 192.0.2.1\n}\n")
	lossy := corefile("lossy", ".:53 {\n  bind 127.0.0.1\n  forward . 192.0.2.1\n  acl\n  health :8080\n}\n")
	bad := corefile("bad", ".:53 {\n")
	const head = "apiVersion: node-cache.io/v1alpha1\nkind: Config\nlisten:\n  port: 53\nforward:\n"
	quoted := func(text string) string {
		b, err := json.Marshal(text)
		must(t, err)
		return string(b)
	}
	const faithful = "  cache: \"off\"\nspecialNames: []\ncache:\n  prefetch:\n    hits: 0\n  serveStale:\n    for: 0s\n"
	for _, tt := range []struct {
		name string
		args []string
		want result
	}{
		{"nothing is lost", []string{"convert", "--faithful", whole}, result{
			0, head + "# " + whole + ":3: forward . 192.0.2.1\n- zone: \".\"\n  to: [\"192.0.2.1\"]\n" + faithful, "",
		}},
		{"something is lost", []string{"convert", "--faithful", lossy}, result{
			4, head + "# " + lossy + ":3: forward . 192.0.2.1\n- zone: \".\"\n  to: [\"192.0.2.1\"]\n" + faithful + "admin:\n  # " + lossy + ":5: health :8080\n  address: \"[::]:8080\"\n",
			lossy + ":4: acl: types are not filtered (no counterpart)\n  hint: a template answers a type: {zone: …, types: […]}\n" +
				lossy + ":5: health :8080: the page is /livez at admin.address, where metrics are too (differs)\n  hint: point the probe there\n",
		}},
		{"for programs", []string{"convert", "--faithful", "-o", "json", corefile("acl", ". {\n  bind 127.0.0.1\n  forward . 192.0.2.1\n  acl\n}\n")}, result{
			4, `{
  "configuration": ` + quoted(head+"# "+folder+"/acl:3: forward . 192.0.2.1\n- zone: \".\"\n  to: [\"192.0.2.1\"]\n"+faithful) + `,
  "notes": [
    {
      "file": "` + folder + `/acl",
      "line": 4,
      "what": "acl",
      "why": "types are not filtered",
      "hint": "a template answers a type: {zone: …, types: […]}",
      "kept": false
    }
  ]
}
`, "",
		}},
		{"a block without an end", []string{"convert", bad}, result{
			1, "", "node-cache: converting: reading the Corefile: " + bad + ":1: a closing brace is missing after .:53 {\n",
		}},
		{"no file", []string{"convert", filepath.Join(folder, "none")}, result{
			1, "", "node-cache: reading the input: open " + filepath.Join(folder, "none") + ": no such file or directory\n" +
				"hint: give a Corefile, the YAML of ConfigMaps, or - for standard input\n",
		}},
	} {
		same(t, tt.name+": convert", tt.want, command(tt.args...))
	}
	if got := command("convert", "--daemonset", whole); got.Code != 0 {
		t.Errorf("convert --daemonset: %+v", got)
	}
}

// TestConvertCluster reads ConfigMaps and the address of the DNS Service from an API server.
func TestConvertCluster(t *testing.T) {
	t.Parallel()
	const local = `{"data": {"Corefile": "cluster.local {\n bind 169.254.20.10\n forward . __PILLAR__CLUSTER__DNS__\n}\n"}}`
	const coreDNS = `{"data": {"Corefile": ". {\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  fallthrough in-addr.arpa ip6.arpa\n }\n forward . 192.0.2.1\n import custom/*.server\n k8s_gateway corp.example\n}\n"}}`
	const services = `{"kind": "ServiceList", "apiVersion": "v1", "items": [{"metadata": {"name": "coredns"}, "spec": {"clusterIP": "10.96.0.10"}}, {"metadata": {"name": "kube-dns-upstream"}, "spec": {"clusterIP": "10.96.0.11"}}]}`
	for _, tt := range []struct {
		name  string
		maps  map[string]string
		code  int
		want  string // in one of the streams
		extra []string
	}{
		{name: "NodeLocal DNSCache first", maps: map[string]string{"node-local-dns": local, "kube-dns": `{"data": {"stubDomains": "{\"corp.example\": [\"10.0.0.1\"]}"}}`, "coredns": coreDNS}, want: `to: ["10.0.0.1"]`},
		{name: "CoreDNS as the old server", maps: map[string]string{"coredns": coreDNS, "coredns-custom": `{"metadata": {}}`}, want: "    service: \"kube-system/coredns\"\n  # coredns Corefile:7: k8s_gateway corp.example\n  zones: [\"corp.example.\"]\n"},
		{name: "another old server", maps: map[string]string{"coredns": coreDNS}, want: `addresses: ["192.0.2.9:5353"]`, extra: []string{"--old-server", "192.0.2.9:5353"}},
		{name: "an old server at the own address", maps: map[string]string{"node-local-dns": local}, code: 1, want: "node-cache: converting: the old server 169.254.20.10:53: the agent answers at this address\nhint: ", extra: []string{"--old-server", "169.254.20.10"}},
		{name: "none", code: 1, want: "node-cache: reading the cluster: namespace kube-system has no ConfigMap of NodeLocal DNSCache, CoreDNS or kube-dns\nhint: "},
		{name: "forbidden", maps: map[string]string{"node-local-dns": "403"}, code: 1, want: "node-cache: reading the cluster: "},
		{name: "endless", maps: map[string]string{"coredns": `{"data": {"Corefile": "` + strings.Repeat("#", 1<<20) + `"}}`}, code: 1, want: "node-cache: converting: reading coredns: larger than 1 MiB\n"},
		{name: "a name of the old server", code: 2, want: "node-cache: convert: --old-server ns.example: not an IP address", extra: []string{"--old-server", "ns.example"}},
		{name: "files too", code: 2, want: "node-cache: convert: give either FILE, or --from-cluster", extra: []string{"file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				text, found := tt.maps[path.Base(r.URL.Path)]
				switch {
				case r.URL.Path == "/api/v1/namespaces/kube-system/services" && r.URL.Query().Get("labelSelector") == "k8s-app=kube-dns":
					_, _ = io.WriteString(w, services)
				case text == "403":
					w.WriteHeader(http.StatusForbidden)
				case found:
					_, _ = io.WriteString(w, `{"kind": "ConfigMap", "apiVersion": "v1", `+text[1:])
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			t.Cleanup(api.Close)
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			must(t, os.WriteFile(kubeconfig, []byte("{current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: '"+api.URL+"'}}]}"), 0o600))
			got := command(append([]string{"convert", "--from-cluster", "--kubeconfig", kubeconfig}, tt.extra...)...)
			if got.Code != tt.code || !strings.Contains(got.Stdout+got.Stderr, tt.want) {
				t.Errorf("convert: %+v, want code %d and %q", got, tt.code, tt.want)
			}
		})
	}
}
