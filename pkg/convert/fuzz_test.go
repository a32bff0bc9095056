// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
)

// FuzzFiles holds the conversion to its contract: an error, or a configuration that passes the checks, with notes that
// say something of a line that there is.
func FuzzFiles(f *testing.F) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".golden") {
			continue
		}
		data, err := os.ReadFile(file)
		must(f, err)
		f.Add(string(data), "")
		f.Add(".:53 {\n import *.override\n forward . __PILLAR__UPSTREAM__SERVERS__\n}\nimport a.server\n", string(data))
	}
	f.Add("(a) {\n b {\n\n}\n import a\n}\n. {\nimport a\n}", "kind: ConfigMap\ndata: {a.server: 'import b.server', b.server: \"x {\\n}\"}")
	f.Add(". {\n hosts {\n  ::1 *.a b.\n }\n rewrite name regex ^(.+)[.]a.b$ {1}c\n forward . tls://[::1]%a:1 [fe80::1%eth0]:53\n}", "kind: List\nitems: [{kind: ConfigMap, data: {stubDomains: '{\"a\": [\"::1#1\"]}'}}]")
	f.Fuzz(func(t *testing.T, first, second string) {
		inputs := []convert.Input{{Name: "one", Text: []byte(first)}}
		if second != "" {
			inputs = append(inputs, convert.Input{Name: "two", Text: []byte(second)})
		}
		r, err := convert.Files(inputs, convert.Options{Faithful: len(first)%2 == 0, OldServer: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(len(second)%2*53))})
		if err != nil {
			if err.Error() == "" || r != nil {
				t.Fatalf("Files: %v beside the error %q", r, err)
			}
			return
		}
		yamlOf(t, r)
		lines := max(strings.Count(first, "\n"), strings.Count(second, "\n")) + 2
		for _, n := range r.Notes {
			if n.File == "" || n.What == "" || n.Why == "" || n.Line < 0 || n.Line > lines && !strings.Contains(n.File, " ") {
				t.Errorf("note %+v has no text, or no line", n)
			}
		}
	})
}

// FuzzKubeDNS holds the routes to those that a configuration may have.
func FuzzKubeDNS(f *testing.F) {
	f.Add(`{"corp.example": ["10.150.0.1", "10.150.0.2#5353", "ns.example"]}`, `["192.0.2.53"]`)
	f.Add(`{".": ["::1"], "A.": []}`, `null`)
	f.Fuzz(func(t *testing.T, stubs, upstreams string) {
		routes, _, err := convert.KubeDNS(map[string]string{"stubDomains": stubs, "upstreamNameservers": upstreams})
		if err != nil {
			if routes != nil {
				t.Fatalf("routes %v beside an error", routes)
			}
			return
		}
		c := config.Default(config.Agent)
		if len(routes) == 0 {
			return
		}
		if routes[len(routes)-1].Zone != "." {
			routes = append(routes, c.Forward[0])
		}
		c.Forward = routes
		if _, err := config.Marshal(c); err != nil && !strings.Contains(err.Error(), "cluster") {
			t.Errorf("routes %+v: %v", routes, err)
		}
	})
}
