// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
)

// update rewrites what the tests compare with.
var update = flag.Bool("update", false, "rewrite testdata")

// TestFiles converts configurations as distributions ship them, and compares with what was read through once.
func TestFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		inputs []string
		lost   bool

		faithful bool
	}{
		{name: "nodelocaldns", inputs: []string{"nodelocaldns.yaml"}},
		{name: "nodelocaldns-faithful", inputs: []string{"nodelocaldns.yaml"}, faithful: true},
		{name: "stub-zones-faithful", inputs: []string{"stub-zones.corefile"}, faithful: true, lost: true},
		{name: "nodelocaldns-kube-dns", inputs: []string{"nodelocaldns.yaml", "kube-dns.yaml"}},
		{name: "nodelocaldns-stub", inputs: []string{"nodelocaldns-stub.yaml"}},
		{name: "kube-dns", inputs: []string{"kube-dns.yaml"}},
		{name: "kubeadm", inputs: []string{"kubeadm.corefile"}},
		{name: "eks", inputs: []string{"eks.corefile"}},
		{name: "aks", inputs: []string{"aks.corefile", "aks-custom.yaml"}},
		{name: "aks-alone", inputs: []string{"aks.corefile"}, lost: true},
		{name: "gke", inputs: []string{"gke.yaml"}},
		{name: "kops", inputs: []string{"kops.yaml"}},
		{name: "stub-zones", inputs: []string{"stub-zones.corefile"}, lost: true},
		{name: "everything", inputs: []string{"everything.corefile"}, lost: true},
		{name: "odd", inputs: []string{"odd.corefile"}, lost: true},
		{name: "k3s", inputs: []string{"k3s.yaml"}},
		{name: "unrouted", inputs: []string{"unrouted.corefile"}, lost: true},
		{name: "openshift", inputs: []string{"openshift.corefile"}},
		{name: "ipvs", inputs: []string{"ipvs.yaml"}},
		{name: "proxy", inputs: []string{"proxy.yaml"}, lost: true},
		{name: "chained", inputs: []string{"chained.corefile"}, lost: true},
		{name: "split", inputs: []string{"split.corefile"}, lost: true},
		{name: "unfilled", inputs: []string{"unfilled.corefile"}, lost: true},
		{name: "external", inputs: []string{"external.corefile"}, lost: true},
		{name: "zonefile", inputs: []string{"zonefile.yaml"}, lost: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var inputs []convert.Input
			for _, file := range tt.inputs {
				inputs = append(inputs, convert.Input{Name: file, Text: read(t, filepath.Join("testdata", file))})
			}
			r, err := convert.Files(inputs, convert.Options{Faithful: tt.faithful})
			must(t, err)
			same(t, "something is lost", tt.lost, r.Lost())
			golden(t, filepath.Join("testdata", tt.name+".golden"), render(t, r))
		})
	}
}

// TestForDaemonSet fits what was converted to the DaemonSet.
func TestForDaemonSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, input string }{
		{"nodelocaldns-on-node", "nodelocaldns.yaml"},
		{"kubeadm-on-node", "kubeadm.corefile"},
		{"kops-on-node", "kops.yaml"},
		{"kubespray-on-node", "kubespray.corefile"},
		{"kube-dns-on-node", "kube-dns.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: tt.input, Text: read(t, filepath.Join("testdata", tt.input))}}, convert.Options{})
			must(t, err)
			must(t, r.ForDaemonSet())
			golden(t, filepath.Join("testdata", tt.name+".golden"), render(t, r))
		})
	}
}

// TestForDaemonSetNotesPod notes what the DaemonSet needs for a configuration.
func TestForDaemonSetNotesPod(t *testing.T) {
	t.Parallel()
	const permissions, memory = "no permission to list pods", "its memory limit is 144Mi, and 162Mi are needed"
	for _, tt := range []struct {
		name, block, want string // want: empty for neither
	}{
		{"pods by their names", "kubernetes cluster.local {\n pods insecure\n}", ""},
		{"pods by their addresses", "kubernetes cluster.local {\n pods verified\n}", permissions},
		{"a cache that fits", "cache {\n success 163840\n}", ""},
		{"a cache that does not fit", "cache {\n success 200000\n}", memory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(". {\n" + tt.block + "\n forward . 192.0.2.1\n}\n")}}, convert.Options{})
			must(t, err)
			must(t, r.ForDaemonSet())
			text := render(t, r)
			for _, note := range []string{permissions, memory} {
				if got := strings.Contains(text, note); got != (note == tt.want) {
					t.Errorf("a note with %q: %t:\n%s", note, got, text)
				}
			}
		})
	}
}

// TestRanges denies the unknown addresses of a prefix, unless they fall through.
func TestRanges(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{"": "[10.96.0.0/16]", "fallthrough": "[]", "fallthrough in-addr.arpa": "[]", "fallthrough cluster.local": "[10.96.0.0/16]"} {
		r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(". {\n kubernetes cluster.local 10.96.0.0/16 {\n" + options + "\n}\n forward . 192.0.2.1\n}\n")}}, convert.Options{})
		must(t, err)
		same(t, options+": cluster.ranges", want, fmt.Sprint(r.Config.Cluster.Ranges))
	}
}

// TestForDaemonSetRefuses refuses a configuration that the agents of the DaemonSet cannot have.
func TestForDaemonSetRefuses(t *testing.T) {
	t.Parallel()
	r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(".:9253 {\n bind 169.254.20.10\n forward . 192.0.2.1\n}\n")}}, convert.Options{})
	must(t, err)
	if err := r.ForDaemonSet(); err == nil || !strings.Contains(err.Error(), "taken by listen") {
		t.Errorf("ForDaemonSet: error %v, want one about the port", err)
	}
}

// render is a result as the command shows it, its notes first.
func render(t *testing.T, r *convert.Result) string {
	t.Helper()
	var b strings.Builder
	for _, n := range r.Notes {
		kind := "-"
		if n.Kept {
			kind = "~"
		}
		fmt.Fprintf(&b, "%s %s\n", kind, n)
		if n.Hint != "" {
			fmt.Fprintf(&b, "    %s\n", n.Hint)
		}
	}
	text := yamlOf(t, r)
	return b.String() + "\n" + string(text)
}

// yamlOf is the file of a result, which must be read as the result's configuration.
func yamlOf(t *testing.T, r *convert.Result) []byte {
	t.Helper()
	text, err := r.YAML()
	must(t, err)
	c, err := config.Parse(text, config.Agent)
	if err != nil {
		t.Fatalf("the converted file is bad: %v\n%s", err, text)
	}
	if diff := cmp.Diff(r.Config, c, plain()); diff != "" {
		t.Errorf("the converted file (-result +file):\n%s", diff)
	}
	return text
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	return data
}

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	same(t, file+", rewritten with -update", string(read(t, file)), got)
}

func TestFilesErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   []string
		want string
	}{
		{name: "nothing", want: "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns"},
		{name: "empty", in: []string{" \n"}, want: "reading file0: empty"},
		{name: "another object", in: []string{"kind: Service\nmetadata: {name: a}\n"}, want: "reading file0: no ConfigMap in it has a Corefile or the keys of kube-dns"},
		{name: "only parts", in: []string{"kind: ConfigMap\ndata: {a.server: 'a { whoami }'}\n"}, want: "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns: give the Corefile that imports a.server beside it: kubectl -n kube-system get configmap coredns coredns-custom -o yaml has both"},
		{name: "parts with another key", in: []string{"kind: ConfigMap\ndata: {a.db: 'x', b.override: 'log'}\n"}, want: "there is nothing to convert: neither a Corefile nor the ConfigMap of one, or of kube-dns: give the Corefile that imports b.override beside it: kubectl -n kube-system get configmap coredns coredns-custom -o yaml has both"},
		{name: "the template of a chart", in: []string{"kind: ConfigMap\nmetadata:\n  {{- with .Values.labels }}\n  labels: {{ toYaml . }}\n  {{- end }}\ndata:\n  Corefile: |\n    . {\n    }\n"}, want: "reading file0: line 3 has {{ … }} or {% … %}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml"},
		{name: "a template within YAML", in: []string{"kind: ConfigMap\ndata:\n  Corefile: |\n    . {\n    {{- if .Values.log }}\n      log\n    {{- end }}\n    }\n"}, want: "reading the Corefile: file0: line 5 has {{ … }} or {% … %}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml"},
		{name: "the template of a playbook", in: []string{". {\n{% if log %}\n  log\n{% endif %}\n}\n"}, want: "reading file0: line 2 has {{ … }} or {% … %}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml"},
		{name: "YAML with a tab", in: []string{"apiVersion: v1\nkind: ConfigMap\ndata:\n\tCorefile: |\n"}, want: "reading file0: it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: yaml: line 4: found character that cannot start any token"},
		{name: "YAML without a kind", in: []string{"data:\n  Corefile: |\n    . {\n      errors\n    }\n"}, want: "reading file0: it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: no object with a kind is in it"},
		{name: "values of a chart", in: []string{"servers:\n- zones: [{zone: .}]\n  port: 53\n"}, want: "reading file0: it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: no object with a kind is in it"},
		{name: "JSON that ends early", in: []string{`{"kind": "ConfigMap", "data"`}, want: "reading file0: it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: yaml: line 1: did not find expected ',' or '}'"},
		{name: "a program", in: []string{"\x7fELF\x02\x01\x00"}, want: "reading file0: not UTF-8 text"},
		{name: "a comment alone", in: []string{"# nothing yet\n"}, want: "reading the Corefile: file0: no server block"},
		{name: "more than a configuration holds", in: []string{". {\n" + strings.Repeat("template IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n", 12_000) + "}\n"}, want: "checking the converted configuration: larger than 1Mi: name a file with the names in hosts.files, or run more than one agent"},
		{name: "a brace too few", in: []string{".:53 {\n  errors\n"}, want: "reading the Corefile: file0:1: a closing brace is missing after .:53 {"},
		{name: "too large", in: []string{strings.Repeat("a", 1<<20+1)}, want: "reading file0: larger than 1 MiB"},
		{name: "snippets that double", in: []string{doubleImports(20)}, want: "reading the Corefile: file0:9: more than 200000 words with what is imported"},
		{name: "import of two", in: []string{". {\nimport a b\n}\n"}, want: "reading the Corefile: file0:2: import takes one name"},
		{name: "a snippet without an end", in: []string{"(a) {\nlog\n"}, want: "reading the Corefile: file0: no server block"},
		{name: "import without a name", in: []string{". {\nimport\n}\n"}, want: "reading the Corefile: file0:2: import without a name"},
		{name: "bad kube-dns", in: []string{"kind: ConfigMap\ndata: {stubDomains: '['}\n"}, want: "reading stubDomains: not a JSON object of lists, like {\"example.com\": [\"192.0.2.1\"]}: unexpected end of JSON input"},
		{name: "files that import each other", in: []string{"import a.server\n", "kind: ConfigMap\ndata: {a.server: \"import a.server\\n\"}\n"}, want: "reading the Corefile: file1 a.server:1: files or snippets that import each other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inputs := make([]convert.Input, len(tt.in))
			for i, text := range tt.in {
				inputs[i] = convert.Input{Name: fmt.Sprintf("file%d", i), Text: []byte(text)}
			}
			_, err := convert.Files(inputs, convert.Options{})
			if err == nil {
				t.Fatal("Files: no error")
			}
			same(t, "error", tt.want, err.Error())
		})
	}
}

// TestClusterSet keeps the domain of a cluster set.
func TestClusterSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"named", ". {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n }\n forward . 192.0.2.1\n}\n", "clusterset.local."},
		{"of the server block", "cluster.local clusterset.local {\n kubernetes {\n  multicluster clusterset.local\n }\n}\n. {\n forward . 192.0.2.1\n}\n", "clusterset.local."},
		{"of a plugin", ". {\n multicluster clusterset.local {\n  noendpoints\n }\n kubernetes cluster.local\n forward . 192.0.2.1\n}\n", "clusterset.local."},
		{"of a plugin in another block", ". {\n kubernetes cluster.local\n forward . 192.0.2.1\n}\nclusterset.local {\n multicluster\n}\n", "clusterset.local."},
		{"the cluster's own", ". {\n kubernetes cluster.local {\n  multicluster cluster.local\n }\n forward . 192.0.2.1\n}\n", ""},
		{"none", ". {\n kubernetes cluster.local\n forward . 192.0.2.1\n}\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, convert.Options{})
			must(t, err)
			same(t, "clusterSet", tt.want, r.Config.Cluster.ClusterSet)
			same(t, "clusterDomain", "cluster.local.", r.Config.ClusterDomain)
			same(t, "something is lost", tt.name == "the cluster's own", r.Lost())
		})
	}
}

// TestOtherKeys notes the keys of a ConfigMap that no part of a configuration uses.
func TestOtherKeys(t *testing.T) {
	t.Parallel()
	const corefile = "kind: ConfigMap\ndata:\n  Corefile: \". {\\n forward . 192.0.2.1\\n hosts /etc/coredns/Hosts\\n}\"\n"
	for _, tt := range []struct{ name, more, want string }{
		{name: "a part without an import", more: "  x.conf: whoami\n", want: "key x.conf"},
		{name: "the one before an upgrade", more: "  Corefile-backup: whoami\n"},
		{name: "a file of names", more: "  Hosts: 192.0.2.2 a\n"},
		{name: "a part beside kube-dns", more: "  stubDomains: '{}'\n---\nkind: ConfigMap\ndata: {a.server: x}\n", want: "a.server"},
		{name: "another ConfigMap", more: "---\nkind: ConfigMap\ndata: {ca.crt: x}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "all.yaml", Text: []byte(corefile + tt.more)}}, convert.Options{})
			must(t, err)
			got := ""
			for _, n := range r.Notes {
				if strings.HasPrefix(n.What, "key ") || strings.HasSuffix(n.What, ".server") {
					got += n.What
				}
			}
			if got != tt.want {
				t.Errorf("notes on keys: %q, want %q", got, tt.want)
			}
		})
	}
}

// TestExternalZoneHasNoRoute leaves out the servers of an external zone, which CoreDNS never asks.
func TestExternalZoneHasNoRoute(t *testing.T) {
	t.Parallel()
	text := ". {\n forward . 192.0.2.1\n}\nexample.org {\n kubernetes cluster.local\n k8s_external\n forward . 192.0.2.2\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{})
	must(t, err)
	if text := string(yamlOf(t, r)); !strings.Contains(text, "zones: [\"example.org.\"]\n") || strings.Contains(text, "192.0.2.2") {
		t.Errorf("want an external zone without a route:\n%s", text)
	}
}

// TestZoneWithoutUpstreams answers SERVFAIL for the names of a zone whose servers cannot be queried, or forwards them to the old server: they
// must not go to the upstreams of the root.
func TestZoneWithoutUpstreams(t *testing.T) {
	t.Parallel()
	const root = ". {\n forward . 192.0.2.1\n}\n"
	for _, tt := range []struct{ name, text string }{
		{"a forward to names alone", root + "corp.example {\n forward . ns.corp.example\n}\n"},
		{"a plugin that is not supported", root + "corp.example {\n nomad\n}\n"},
		{"a plugin before a forward", root + "corp.example {\n nomad\n forward . 192.0.2.2\n}\n"},
		{"a plugin in the block of the root", ". {\n k8s_external corp.example\n forward . 192.0.2.1\n}\n"},
		{"a plugin with the zone's ID", ". {\n route53 corp.example.:Z4R\n forward . 192.0.2.1\n}\n"},
		{"a plugin with the zone's group", ". {\n azure group:corp.example\n forward . 192.0.2.1\n}\n"},
		{"a plugin of others", ". {\n k8s_gateway corp.example\n forward . 192.0.2.1\n}\n"},
		{"a cluster set without a cluster", root + "corp.example {\n multicluster\n}\n"},
		{"a second cluster set", ". {\n kubernetes cluster.local set.example corp.example {\n  multicluster set.example corp.example\n }\n forward . 192.0.2.1\n}\n"},
		{"the domain of a second cluster", ". {\n kubernetes cluster.local\n kubernetes corp.example {\n  kubeconfig k\n }\n forward . 192.0.2.1\n}\n"},
		{"an unknown plugin", ". {\n something corp.example {\n  x y\n }\n forward . 192.0.2.1\n}\n"},
		{"a file that is not given", ". {\n file db.corp.example corp.example\n forward . 192.0.2.1\n}\n"},
		{"a route that is refused", root + "corp.example {\n forward . 192.0.2.2 {\n  tls a.pem\n }\n}\n"},
		{"a stub domain with names alone", "kind: ConfigMap\ndata:\n  stubDomains: '{\"corp.example\": [\"ns.corp.example\"]}'\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, convert.Options{})
			must(t, err)
			if !r.Lost() {
				t.Error("no note reports that something is lost")
			}
			if text := string(yamlOf(t, r)); !strings.Contains(text, "- zone: \"corp.example.\"\n  to: [\"none\"]\n") {
				t.Errorf("the names of corp.example do not get SERVFAIL:\n%s", text)
			}
			r, err = convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, convert.Options{OldServer: netip.MustParseAddrPort("192.0.2.9:53")})
			must(t, err)
			if text := string(yamlOf(t, r)); !strings.Contains(text, "- zone: \"corp.example.\"\n  to: [\"192.0.2.9\"]\n") {
				t.Errorf("the old server is not asked for the names of corp.example:\n%s", text)
			}
		})
	}
}

// TestEtcd converts the plugin etcd to the section etcd.
func TestEtcd(t *testing.T) {
	t.Parallel()
	const forward = ". {\n forward . 192.0.2.1\n}\n"
	section := func(zones ...string) config.Etcd {
		return config.Etcd{Endpoints: []string{"http://localhost:2379"}, Prefix: "/skydns", Zones: zones}
	}
	with := func(e config.Etcd, change func(*config.Etcd)) config.Etcd {
		change(&e)
		return e
	}
	for _, tt := range []struct {
		name, text string
		want       config.Etcd
		lost       string // part of a note; empty: nothing is lost
	}{
		{"the defaults", forward + "a.example {\n etcd\n}\n", section("a.example."), ""},
		{
			"zones, path, endpoints and what CoreDNS ignores",
			". {\n etcd a.example 10.0.0.0/8 {\n  path records\n  endpoint http://192.0.2.2:2379 192.0.2.3\n  stubzones\n  upstream\n }\n forward . 192.0.2.1\n}\n",
			config.Etcd{Endpoints: []string{"http://192.0.2.2:2379", "http://192.0.2.3:2379"}, Prefix: "/records", Zones: []string{"a.example.", "10.in-addr.arpa."}},
			"",
		},
		{
			"certificates", forward + "a.example {\n root /etc/tls\n etcd {\n  endpoint https://etcd.example\n  tls cert.pem key.pem /ca.pem\n }\n}\n",
			config.Etcd{Endpoints: []string{"https://etcd.example:2379"}, Prefix: "/skydns", Zones: []string{"a.example."}, EtcdTLS: config.EtcdTLS{CA: "/ca.pem", Cert: "/etc/tls/cert.pem", Key: "/etc/tls/key.pem"}},
			"",
		},
		{
			"a password", forward + "a.example {\n etcd {\n  credentials root secret\n }\n}\n",
			with(section("a.example."), func(e *config.Etcd) { e.User, e.PasswordFile = "root", "/etc/node-cache/etcd-password" }), "the password is not copied",
		},
		{"fallthrough", ". {\n etcd a.example {\n  fallthrough\n }\n forward . 192.0.2.1\n}\n", with(section("a.example."), func(e *config.Etcd) { e.Fallthrough = true }), ""},
		{
			"fallthrough of one zone", ". {\n etcd a.example b.example {\n  fallthrough a.example\n }\n forward . 192.0.2.1\n}\n",
			with(section("a.example.", "b.example."), func(e *config.Etcd) { e.Fallthrough = true }), "fallthrough is for all zones",
		},
		{"all names beside a cluster", ". {\n kubernetes cluster.local\n etcd\n}\n", with(section("."), func(e *config.Etcd) { e.Fallthrough = true }), "other zones have other answers"},
		{"two plugins of one etcd", forward + "a.example {\n etcd\n}\nb.example {\n etcd\n}\n", section("a.example.", "b.example."), ""},
		{"two stores", forward + "a.example {\n etcd\n}\nb.example {\n etcd {\n  path /b\n }\n}\n", section("a.example."), "the records of one etcd are read"},
		{"no server", forward + "a.example {\n etcd {\n  endpoint ftp://a\n }\n}\n", config.Etcd{Prefix: "/skydns"}, "not a server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, convert.Options{})
			must(t, err)
			same(t, "section", tt.want, r.Config.Etcd)
			lost := ""
			for _, n := range r.Notes {
				if !n.Kept {
					lost += n.String() + "\n"
				}
			}
			if (lost == "") != (tt.lost == "") || !strings.Contains(lost, tt.lost) {
				t.Errorf("lost %q, want %q", lost, tt.lost)
			}
			for _, zone := range tt.want.Zones {
				if zone != "." && slices.ContainsFunc(r.Config.Forward, func(f config.Route) bool { return f.Zone == zone }) {
					t.Errorf("%s has a route", zone)
				}
			}
		})
	}
}

// TestSecondDomain gives the names of the cluster below each of its domains.
func TestSecondDomain(t *testing.T) {
	t.Parallel()
	text := ". {\n kubernetes a.example b.example {\n  zonal\n }\n forward . 192.0.2.1\n cache\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{Faithful: true})
	must(t, err)
	same(t, "lost", false, r.Lost())
	same(t, "domains", []string{"a.example.", "b.example."}, r.Config.Domains())
}

// TestFederations keeps the last domain of each federation, from the plugin and the option of kubernetes.
func TestFederations(t *testing.T) {
	t.Parallel()
	text := ". {\n kubernetes cluster.local {\n  federation old one.example\n }\n federation cluster.local {\n  old two.example\n  new three.example\n  upstream\n  bad\n }\n" +
		" forward . 192.0.2.1\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{})
	must(t, err)
	same(t, "federations", []config.Federation{{Name: "old", Domain: "two.example."}, {Name: "new", Domain: "three.example."}}, r.Config.Cluster.Federations)
	same(t, "lost", true, r.Lost())
}

// TestImports reads imports where CoreDNS does, and from the given files alone.
func TestImports(t *testing.T) {
	t.Parallel()
	const parts = "kind: ConfigMap\ndata:\n  a.server: \"(b) {\\n debug\\n}\\n\"\n  c.override: \"forward . 192.0.2.1\\n\"\n"
	for _, tt := range []struct{ name, text, want string }{
		{"a snippet", "(a) {\n debug\n}\n. {\n import a\n}\n", "debug"},
		{"a snippet on one line", "(a) { debug }\n. { import a }\n", "debug"},
		{"a snippet in a snippet", "(a) {\n debug\n}\n(b) {\n import a\n}\n. {\n import b\n}\n", "debug"},
		{"a snippet of a file", "import a.server\n. {\n import b\n}\n", "debug"},
		{"a snippet within a plugin", "(a) {\n except lan\n}\n. {\n forward . 192.0.2.1 {\n  import a\n }\n}\n", "lan."},
		{"files of a folder", ". {\n import /etc/coredns/custom/*.override\n}\n", "192.0.2.1"},
		{"a server without braces", "example.com\nforward . 192.0.2.1\ndebug\n", "debug"},
		{"keys on two lines", "example.com,\nexample.org {\n forward . 192.0.2.1\n}\n", "example.org."},
		{"an argument that is no import", ". {\n forward . 192.0.2.1\n rewrite name import example.org\n}\n", "exact: \"import\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(tt.text)}, {Name: "parts", Text: []byte(parts)}}, convert.Options{})
			must(t, err)
			if text := string(yamlOf(t, r)); !strings.Contains(text, tt.want) {
				t.Errorf("no %q in\n%s", tt.want, text)
			}
		})
	}
}

// TestManyProblems keeps the valid ones of many rules. The checks report a part of the problems at a time.
func TestManyProblems(t *testing.T) {
	t.Parallel()
	text := ". {\n rewrite name a.example b.example\n" + strings.Repeat(" rewrite name a.example c.example\n", 250) + " forward . 192.0.2.1\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, convert.Options{})
	must(t, err)
	if got := len(r.Config.Rewrite); got != 1 || r.Config.Forward[0].To[0].Addr.Addr().String() != "192.0.2.1" {
		t.Errorf("%d rules and route %v, want 1 and 192.0.2.1", got, r.Config.Forward[0].To)
	}
	for _, n := range r.Notes {
		if n.What == "" || n.Line == 0 && n.Kept == false {
			t.Errorf("note %+v has no text, or no line", n)
		}
	}
}

// doubleImports is a Corefile of snippets each of which imports the one before it twice.
func doubleImports(n int) string {
	var b strings.Builder
	b.WriteString("(s0) {\n log\n}\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, "(s%d) {\n import s%d\n import s%d\n}\n", i, i-1, i-1)
	}
	fmt.Fprintf(&b, ". {\n import s%d\n}\n", n-1)
	return b.String()
}

// same compares what a test wants with what it got.
func same[T any](tb testing.TB, what string, want, got T, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// must ends the test at an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestHostsOtherTypes converts a block that leaves other types than addresses to the next plugin, as hosts always do here.
func TestHostsOtherTypes(t *testing.T) {
	t.Parallel()
	text := ".:53 {\n hosts {\n  10.0.0.9 example.org\n  ttl 30\n  fallthrough\n  fallthrough_unsupported\n }\n forward . 192.0.2.1\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, convert.Options{})
	must(t, err)
	for _, note := range r.Notes {
		if strings.Contains(note.What, "fallthrough") {
			t.Errorf("%s, want no note about it", note)
		}
	}
	if got := yamlOf(t, r); !strings.Contains(string(got), `"example.org.": ["10.0.0.9"]`) {
		t.Errorf("want the address:\n%s", got)
	}
}
