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
		{name: "k3s", inputs: []string{"k3s.yaml"}, lost: true},
		{name: "unrouted", inputs: []string{"unrouted.corefile"}, lost: true},
		{name: "openshift", inputs: []string{"openshift.corefile"}},
		{name: "ipvs", inputs: []string{"ipvs.yaml"}},
		{name: "proxy", inputs: []string{"proxy.yaml"}},
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
		{"pods by their addresses", "kubernetes cluster.local in-addr.arpa ip6.arpa {\n pods verified\n}", permissions},
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
	for options, want := range map[string]string{"": "[0.0.0.0/0 ::/0]", "fallthrough": "[]", "fallthrough in-addr.arpa": "[::/0]", "fallthrough cluster.local": "[0.0.0.0/0 ::/0]"} {
		r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(". {\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n" + options + "\n}\n forward . 192.0.2.1\n}\n")}}, convert.Options{})
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
		{name: "YAML without a kind", in: []string{"spec:\n  Corefile: |\n    . {\n      errors\n    }\n"}, want: "reading file0: no ConfigMap in it has a Corefile or the keys of kube-dns"},
		{name: "JSON that ends early", in: []string{`{"kind": "ConfigMap", "data"`}, want: "reading file0: it is neither a Corefile nor YAML of a ConfigMap as kubectl get -o yaml writes it: yaml: line 1: did not find expected ',' or '}'"},
		{name: "a program", in: []string{"\x7fELF\x02\x01\x00"}, want: "reading file0: not UTF-8 text"},
		{name: "a comment alone", in: []string{"# nothing yet\n"}, want: "reading the Corefile: file0: no server block"},
		{name: "more than a configuration holds", in: []string{". {\n" + strings.Repeat("template IN A {\n"+strings.Repeat("answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n", 4)+"}\n", 5600) + "}\n"}, want: "checking the converted configuration: larger than 1Mi: name a file with the names in hosts.files, or run more than one agent"},
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

// whereTo returns who is asked for a name outside the cluster domain: upstreams, central, or none.
func whereTo(c *config.Config, name string) string {
	best, to := "", ""
	add := func(zone, asked string) {
		if (zone == "." || name == zone || strings.HasSuffix(name, "."+zone)) && len(zone) > len(best) {
			best, to = zone, asked
		}
	}
	for _, r := range c.Forward {
		add(r.Zone, fmt.Sprint(r.To))
	}
	for _, zone := range c.Cluster.Zones {
		add(zone, "central")
	}
	return to
}

// TestZones leaves the zones whose answers cannot be the same to the server that stays. Where none does, their names fail, and convert says
// so: they must not go to another server.
func TestZones(t *testing.T) {
	t.Parallel()
	const root, kubernetes = ". {\n forward . 192.0.2.1\n}\n", " kubernetes cluster.local in-addr.arpa ip6.arpa {\n  fallthrough in-addr.arpa ip6.arpa\n }\n"
	for _, tt := range []struct{ name, text string }{
		{"a forward to names alone", root + "corp.example {\n forward . ns.corp.example\n}\n"},
		{"a plugin that is not supported", root + "corp.example {\n nomad\n}\n"},
		{"a plugin before a forward", root + "corp.example {\n nomad\n forward . 192.0.2.2\n}\n"},
		{"external names", ". {\n k8s_external corp.example\n forward . 192.0.2.1\n}\n"},
		{"external names of a block", root + "corp.example {\n kubernetes\n k8s_external corp.example\n}\n"},
		{"records in an etcd", ". {\n etcd corp.example\n forward . 192.0.2.1\n}\n"},
		{"a plugin with the zone's ID", ". {\n route53 corp.example.:Z4R\n forward . 192.0.2.1\n}\n"},
		{"a plugin with the zone's group", ". {\n azure group:corp.example\n forward . 192.0.2.1\n}\n"},
		{"a plugin of others", ". {\n k8s_gateway corp.example\n forward . 192.0.2.1\n}\n"},
		{"a cluster set", root + "corp.example {\n multicluster\n}\n"},
		{"the domain of a second cluster", ". {\n forward . 192.0.2.1\n kubernetes corp.example {\n  kubeconfig k\n }\n}\n"},
		{"a zone file", ". {\n file db.corp.example corp.example\n forward . 192.0.2.1\n}\n"},
		{"the content of answers", root + "corp.example {\n forward . 192.0.2.2 {\n  next NXDOMAIN\n }\n}\n"},
		{"a certificate of the client", root + "corp.example {\n forward . tls://192.0.2.2 {\n  tls a.pem b.pem\n }\n}\n"},
		{"two lists of servers", root + "corp.example {\n forward . 192.0.2.2\n forward . 192.0.2.3\n}\n"},
		{"a wildcard", ". {\n hosts {\n  10.0.0.1 *.corp.example\n  fallthrough\n }\n forward . 192.0.2.1\n}\n"},
		{"a server of its own", root + "corp.example {\n forward . 127.0.0.1:5301\n}\n.:5301 {\n forward . 192.0.2.3\n}\n"},
		{"an unknown plugin", root + "corp.example {\n something corp.example\n}\n"},
		{"two blocks with views", root + "corp.example {\n view v4 {\n  expr type() == 'A'\n }\n forward . 192.0.2.2\n}\ncorp.example {\n forward . 192.0.2.3\n}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files := func(text string, o convert.Options) *convert.Result {
				r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, o)
				must(t, err)
				yamlOf(t, r)
				return r
			}
			staying := files(strings.Replace(tt.text, ". {\n", ". {\n"+kubernetes, 1), convert.Options{})
			same(t, "beside a CoreDNS, lost", false, staying.Lost())
			same(t, "asked for a.corp.example", "central", whereTo(&staying.Config, "a.corp.example."))
			same(t, "asked for other names", "[192.0.2.1]", whereTo(&staying.Config, "a.example."))
			same(t, "cluster", config.ResolverLocal, staying.Config.Cluster.Resolver)
			if !strings.Contains(tt.text, "kubernetes") {
				old := files(tt.text, convert.Options{OldServer: netip.MustParseAddrPort("192.0.2.9:53")})
				same(t, "beside an old server, asked for a.corp.example", "[192.0.2.9]", whereTo(&old.Config, "a.corp.example."))
			}
			alone := files(strings.Replace(tt.text, ". {\n", ". {\n"+kubernetes, 1), convert.Options{Replace: true})
			same(t, "in its place, lost", true, alone.Lost())
			to := map[bool]string{true: "[none]"}[!slices.Contains([]string{"the content of answers", "a certificate of the client", "two lists of servers", "a server of its own", "two blocks with views"}, tt.name)]
			if got := whereTo(&alone.Config, "a.corp.example."); to != "" && got != to || got == "[192.0.2.1]" {
				t.Errorf("in its place, asked for a.corp.example: %s", got)
			}
		})
	}
}

// TestBlocks leaves whole blocks to the server that stays where one of their plugins may touch any name.
func TestBlocks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, block string
		isLeft      bool
		lost        bool // also with the server that stays
	}{
		{"nothing else", "", false, false},
		{"a rule to a name of the block", "rewrite name exact shop.example web.shop.svc.cluster.local", false, false},
		{"rules for the ends of names", "rewrite name suffix .old.example .new.example answer auto", false, false},
		{"a rule to a name of another block", "rewrite name exact shop.example a.corp.example", true, false},
		{"a rule for names of another block", "rewrite name suffix .example .test answer auto", true, false},
		{"a rule for the ends of labels", "rewrite name suffix old.test new.test answer auto", true, false},
		{"an expression", `rewrite name regex (.*)\.old\.test {1}.new.test answer auto`, true, false},
		{"an expression, and the way back", `rewrite name regex (.*)\.old\.test {1}.new.test answer name (.*)\.new\.test {1}.old.test`, true, false},
		{"an expression, and another way back", `rewrite name regex (.*)\.old\.test {1}.new.test answer name (.*)\.new\.test {1}.other.test`, true, true},
		{"answers with another name", "rewrite name suffix .old.test .new.test", true, true},
		{"rules one after the other", "rewrite continue name exact a.test b.test", true, false},
		{"another field", "rewrite ttl a.test 30-300", true, false},
		{"the client's network", "rewrite edns0 subnet set 24 56", true, true},
		{"names with addresses", "hosts {\n 10.0.0.1 a.test\n fallthrough\n}", false, false},
		{"names of a file", "hosts /etc/hosts.d/a {\n fallthrough\n}", true, false},
		{"names that end the lookup", "hosts {\n 10.0.0.1 a.test\n}", true, false},
		{"a pattern", "template IN A b.test {\n answer \"{{ .Name }} 60 IN A 10.0.0.1\"\n}", false, false},
		{"a pattern over a name with an address", "hosts {\n 10.0.0.1 a.test\n fallthrough\n}\ntemplate IN A test {\n answer \"{{ .Name }} 60 IN A 10.0.0.2\"\n}", true, false},
		{"a pattern beside a name with an address", "hosts {\n 10.0.0.1 a.test\n fallthrough\n}\ntemplate IN AAAA test {\n rcode NOERROR\n}", false, false},
		{"a pattern over another block", "template IN A example {\n answer \"{{ .Name }} 60 IN A 10.0.0.2\"\n}", true, false},
		{"the client in a pattern", "template IN A b.test {\n answer \"{{ .Name }} 60 IN TXT {{ .Remote }}\"\n}", true, false},
		{"a type for all clients", "acl {\n filter type AAAA\n}", true, false},
		{"clients", "acl {\n block net 10.0.0.0/8\n}", false, true},
		{"IPv6 of a NAT64", "dns64", true, false},
		{"a signature", "dnssec", true, false},
		{"the search path of pods", "autopath @kubernetes", false, true},
		{"transfers", "transfer {\n to *\n}", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := ". {\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  fallthrough in-addr.arpa ip6.arpa\n }\n" + tt.block + "\n forward . 192.0.2.1\n}\ncorp.example {\n forward . 192.0.2.2\n}\n"
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{})
			must(t, err)
			yamlOf(t, r)
			c := &r.Config
			want := [4]string{config.ResolverLocal, "[192.0.2.1]", "[192.0.2.2]", fmt.Sprint(tt.lost)}
			if tt.isLeft {
				want[0], want[1] = config.ResolverCentral, "central"
				if len(c.Rewrite)+len(c.Templates)+len(c.Hosts.Names) > 0 || c.DNS64.Prefix.IsValid() {
					t.Errorf("something of the block is converted:\n%s", yamlOf(t, r))
				}
			}
			same(t, "resolver, other names, those of another block, and something is lost", want,
				[4]string{c.Cluster.Resolver, whereTo(c, "a.test."), whereTo(c, "a.corp.example."), fmt.Sprint(r.Lost())})
			replaced, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{Replace: true})
			must(t, err)
			same(t, "in its place, something is lost", tt.isLeft || tt.lost, replaced.Lost())
		})
	}
}

// TestForms reads a Corefile where people keep it, with the lines of the file, or says where it is.
func TestForms(t *testing.T) {
	t.Parallel()
	const values = "servers:\n- zones: [{zone: ., scheme: dns://}]\n  port: 53\n  plugins:\n  - name: hosts\n    configBlock: |-\n      10.0.0.1 a.test\n      fallthrough\n" +
		"  - {name: forward, parameters: . 192.0.2.1}\n- zones:\n  - zone: corp.example\n  plugins:\n  - name: forward\n    parameters: . 192.0.2.2\n"
	indent := func(text, by string) string {
		return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by) + "\n"
	}
	const corefile = ".:53 {\n hosts {\n  10.0.0.1 a.test\n  fallthrough\n }\n forward . 192.0.2.1\n}\ncorp.example:53 {\n forward . 192.0.2.2\n}\n"
	quoted := strings.ReplaceAll(corefile, "\n", `\n`)
	for _, tt := range []struct {
		name, text string
		line       int    // of the name; 0: not a line of the file
		err        string // part of the error
	}{
		{name: "a ConfigMap", text: "kind: ConfigMap\ndata:\n  Corefile: |\n" + indent(corefile, "    "), line: 6},
		{name: "kubectl patch", text: "data:\n  Corefile: |\n" + indent(corefile, "    "), line: 5},
		{name: "values of the chart", text: values, line: 7},
		{name: "values of a chart with the chart", text: "coredns:\n" + indent(values, "  "), line: 8},
		{name: "Flux", text: "kind: HelmRelease\nspec:\n  values:\n" + indent(values, "    "), line: 10},
		{name: "RKE2", text: "kind: HelmChartConfig\nspec:\n  valuesContent: |-\n" + indent(values, "    "), line: 10},
		{name: "EKS", text: `{"corefile": "` + quoted + `", "replicaCount": 2}`},
		{name: "OpenShift", text: "apiVersion: operator.openshift.io/v1\nkind: DNS\nspec: {servers: []}\n", err: "oc -n openshift-dns get configmap dns-default"},
		{name: "AKS", text: `{"mode": "Preferred", "vnetDNSOverrides": {".": {}}}`, err: "localdns.corefile"},
		{name: "flags of dnsmasq", text: "kind: Deployment\nspec: {template: {spec: {containers: [{args: [--server=/corp.example/192.0.2.2]}]}}}\n", err: "get configmap kube-dns"},
		{name: "values of a chart for NodeLocal DNSCache", text: "config: {localDns: 169.254.20.25}\n", err: "get configmap node-local-dns"},
		{name: "values of another chart", text: "replicaCount: 2\n", err: "no ConfigMap in it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, convert.Options{})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("Files: %v, want %q in an error", err, tt.err)
				}
				return
			}
			must(t, err)
			text := string(yamlOf(t, r))
			if at := fmt.Sprintf("# file:%d: other types of a.test.", tt.line); tt.line > 0 && !strings.Contains(text, at) {
				t.Errorf("no %q in\n%s", at, text)
			}
			same(t, "asked for other names", "[192.0.2.1]", whereTo(&r.Config, "b.test."))
			same(t, "asked for corp.example", "[192.0.2.2]", whereTo(&r.Config, "corp.example."))
		})
	}
}

// TestSecondDomain gives the names of the cluster below each of its domains.
func TestSecondDomain(t *testing.T) {
	t.Parallel()
	text := ". {\n kubernetes a.example b.example in-addr.arpa ip6.arpa {\n  zonal\n }\n forward . 192.0.2.1\n cache\n}\n"
	r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(text)}}, convert.Options{Faithful: true})
	must(t, err)
	same(t, "lost", false, r.Lost())
	same(t, "domains", []string{"a.example.", "b.example."}, r.Config.Domains())
}

// TestFederations keeps the last domain of each federation, from the plugin and the option of kubernetes.
func TestFederations(t *testing.T) {
	t.Parallel()
	text := ". {\n kubernetes cluster.local in-addr.arpa ip6.arpa {\n  federation old one.example\n }\n federation cluster.local {\n  old two.example\n  new three.example\n  upstream\n  bad\n }\n" +
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

// TestHostsOtherTypes converts a block that passes on other types than addresses, which the names in hosts.names here have none of. Its
// names stay with the old server, or are lost.
func TestHostsOtherTypes(t *testing.T) {
	t.Parallel()
	for before, want := range map[string]string{"kubernetes cluster.local": "left", "": "lost"} {
		text := ".:53 {\n " + before + "\n hosts {\n  10.0.0.9 example.org\n  ttl 30\n  fallthrough\n  fallthrough_unsupported\n }\n forward . 192.0.2.1\n}\n"
		r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, convert.Options{})
		must(t, err)
		got := "silent"
		for _, note := range r.Notes {
			if strings.Contains(note.What+note.Why, "fallthrough_unsupported") {
				got = map[bool]string{true: "left", false: "lost"}[note.Left]
			}
		}
		same(t, text, want, got)
	}
}

// TestOverTLS converts server blocks over TLS if that is sure: the blocks over UDP are the same, and there is one certificate.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	const files, root = " tls /c.pem /k.pem\n", " forward . 192.0.2.1\n cache 30\n"
	for _, tt := range []struct {
		name, text string
		port       uint16 // 0: noted
		options    convert.Options
	}{
		{name: "two blocks", text: ".:53 {\n errors\n health\n" + root + "}\ntls://.:853 {\n" + files + root + " log\n}\n", port: 853},
		{name: "one block with both", text: ". tls://. {\n" + files + root + "}\n", port: 853},
		{name: "another port", text: ". tls://.:8853 {\n" + files + root + "}\n", port: 8853},
		{name: "several zones", text: ". tls://. {\n" + files + root + "}\ncorp.example tls://corp.example {\n" + files + " forward . 192.0.2.2\n}\n", port: 853},
		{name: "another upstream", text: ". {\n" + root + "}\ntls://. {\n" + files + " forward . 192.0.2.2\n cache 30\n}\n"},
		{name: "another option", text: ". {\n" + root + "}\ntls://. {\n" + files + " forward . 192.0.2.1 {\n  policy sequential\n }\n cache 30\n}\n"},
		{name: "a zone over UDP only", text: ". tls://. {\n" + files + root + "}\ncorp.example {\n forward . 192.0.2.2\n}\n"},
		{name: "a zone over TLS only", text: ". {\n" + root + "}\ntls://corp.example {\n" + files + root + "}\n"},
		{name: "two blocks over TLS for a zone", text: ". tls://. {\n" + files + root + "}\ntls://. {\n" + files + root + "}\n"},
		{name: "two certificates", text: ". tls://. {\n" + files + root + "}\ncorp.example tls://corp.example {\n tls /d.pem /k.pem\n forward . 192.0.2.2\n}\n"},
		{name: "two ports", text: ". tls://. tls://.:8853 {\n" + files + root + "}\n"},
		{name: "the port of the others", text: ". tls://.:53 {\n" + files + root + "}\n"},
		{name: "no port", text: ". tls://.:x {\n" + files + root + "}\n"},
		{name: "clients with certificates", text: ". tls://. {\n tls /c.pem /k.pem /ca.pem {\n  client_auth require\n }\n" + root + "}\n"},
		{name: "a certificate with an option", text: ". tls://. {\n tls /c.pem /k.pem {\n  client_auth request\n }\n" + root + "}\n"},
		{name: "paths in the folder of the Corefile", text: ". tls://. {\n tls c.pem k.pem\n" + root + "}\n"},
		{name: "no certificate", text: ". tls://. {\n" + root + "}\n"},
		{name: "the old server stays", text: ". tls://. {\n" + files + root + "}\n", options: convert.Options{OldServer: netip.MustParseAddrPort("192.0.2.9:53")}},
		{name: "no block over TLS", text: ". {\n" + files + root + "}\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := convert.Files([]convert.Input{{Name: "file", Text: []byte(tt.text)}}, tt.options)
			must(t, err)
			text := yamlOf(t, r)
			want := config.Default(config.Agent).Listen.ListenTLS
			if tt.port > 0 {
				want = config.ListenTLS{TLSPort: tt.port, Cert: "/c.pem", Key: "/k.pem"}
			}
			same(t, "listen.tls", want, r.Config.Listen.ListenTLS)
			same(t, "noted as lost", tt.port == 0, r.Lost())
			if tt.port > 0 && !strings.Contains(string(text), ": tls /c.pem /k.pem\n") {
				t.Errorf("without its origin:\n%s", text)
			}
		})
	}
}
