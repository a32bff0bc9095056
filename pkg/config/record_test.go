// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestRecordIsSingle refuses texts of records that are, or expand to, anything but one record: directives of zone files,
// both in the text when it is parsed and in the output of an action.
func TestRecordIsSingle(t *testing.T) {
	t.Parallel()
	const read, made, taken = "reading the template of a record: it has a directive", "reading the record: ", ""
	for _, tt := range []struct{ name, text, want string }{
		{name: "include", text: "$INCLUDE /etc/passwd", want: read},
		{name: "in a second line, lower-case", text: "\n$include\t/etc/passwd", want: read},
		{name: "in a branch that is not taken", text: `{{ if eq .Type "MX" }}$INCLUDE /etc/passwd{{ end }}`, want: read},
		{name: "ahead of an action", text: `{{ if .Name }}{{ else }}$INCLUDE{{ " " }}/etc/passwd{{ end }}`, want: read},
		{name: "generate", text: "$GENERATE 1-1 a 60 IN A 192.0.2.$", want: read},
		{name: "origin", text: "$ORIGIN example.\na 60 IN A 192.0.2.1", want: read},
		{name: "ttl", text: "$TTL 60\na. IN A 192.0.2.1", want: read},
		{name: "include that an action makes", text: `{{ print "$INC" "LUDE /etc/passwd" }}`, want: made + "it has a directive"},
		{name: "include with a carriage return in it", text: "$INC\rLUDE /etc/passwd", want: made + "dns: $INCLUDE directive not allowed"},
		{name: "two", text: "a. 60 IN A 192.0.2.1\nb. 60 IN A 192.0.2.2", want: made + "there is not one"},
		{name: "one, and something else", text: "a. 60 IN A 192.0.2.1\nb", want: made + "dns: not a TTL"},
		{name: "a comment", text: "; nothing", want: made + "there is not one"},
		{name: "class", text: "a. 60 CH TXT x", want: made + "it is not of class IN"},
		{name: "type", text: `a. 60 IN TYPE41 \# 0`, want: made + "its type"},
		{name: "a field that is none", text: "{{ .Remote }} A 192.0.2.1", want: "executing it: "},
		{name: "a group that is none", text: "{{ .Group.hots }} A 192.0.2.1", want: "executing it: "},
		{name: "a group by number that is none", text: "{{ index .Match 1 }} A 192.0.2.1", want: "executing it: "},
		{name: "too long", text: `a. 60 IN TXT ` + strings.Repeat(`{{ printf "%999d" 1 }}`, 255) + strings.Repeat("x", 10_000), want: made + "it is longer"},
		{name: "a name like a directive", text: "$include.example. 60 IN A 192.0.2.1", want: taken},
		{name: "of several lines", text: "a. 60 IN SOA b. c. ( 1 2\n 3 4 5 )\n", want: taken},
		{name: "a dollar", text: `a. 60 IN TXT "$TTL 60"`, want: taken},
	} {
		record, err := config.ParseRecord(tt.text)
		var rr dns.RR
		if err == nil {
			rr, err = record(&config.TemplateData{Name: "a.example.", Type: "A"})
		}
		switch {
		case tt.want == taken && (err != nil || rr == nil):
			t.Errorf("%s: %v, error %v", tt.name, rr, err)
		case tt.want != taken && (err == nil || !strings.HasPrefix(err.Error(), tt.want)):
			t.Errorf("%s: %v, error %v, want %q", tt.name, rr, err, tt.want)
		}
	}
}

// FuzzRecord has records that are made of what clients ask for, with the name taken apart where a careless expression
// does: none is a directive, and what is made is a record that can be sent.
func FuzzRecord(f *testing.F) {
	secret := filepath.Join(f.TempDir(), "secret")
	assert.NoError(f, os.WriteFile(secret, []byte("secret. 60 IN A 192.0.2.66\n"), 0o600))
	var records []func(*config.TemplateData) (dns.RR, error)
	for _, text := range []string{
		"{{ .Group.first }} {{ .Group.second }}", "{{ .Group.first }} {{ .Group.second }} 60 IN A 192.0.2.1", "{{ .Name }} 60 IN A {{ .Group.first }}",
		`{{ .Name }} 60 IN TXT "{{ .Group.first }}" {{ .Group.second }}`, "{{ .Group.first }}.{{ .Group.second }}. 60 IN A 192.0.2.1",
		`{{ .Group.first }}{{ "\n" }}{{ .Group.second }} 60 IN A 192.0.2.1`, "{{ .Group.first }}\n{{ .Name }} 60 IN A 192.0.2.1",
	} {
		record, err := config.ParseRecord(text)
		assert.NoError(f, err)
		records = append(records, record)
	}
	for _, labels := range [][2]string{
		{"$INCLUDE", secret},
		{"$include", "x y"},
		{"$INCLUDE " + secret, "\n"},
		{"a\n$INCLUDE", secret},
		{"$INCLUDE\n", secret},
		{"$inc\rlude", secret},
		{"$ORIGIN", "x."},
		{"$TTL", "1"},
		{"$GENERATE", "1-9"},
		{"(", ")"},
		{")", "("},
		{`"`, `\`},
		{`\`, `"`},
		{";", "@"},
		{"\x00", "\xff"},
		{"192.0.2.1", "1"},
		{"{{", "}}"},
	} {
		f.Add([]byte(labels[0]), []byte(labels[1]))
	}
	expressions := []*regexp.Regexp{
		regexp.MustCompile(`(?s)^(?P<first>.*?)[.](?P<second>.*)[.]x[.]$`), regexp.MustCompile(`(?s)^(?P<first>[^\\]*)\\?(?P<second>.*)[.]x[.]$`),
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		packed := slices.Concat([]byte{byte(len(first))}, first, []byte{byte(len(second))}, second, []byte("\x01x\x00"))
		name, end, err := dns.UnpackDomainName(packed, 0)
		if err != nil || end != len(packed) {
			return
		}
		for _, e := range expressions {
			groups := e.FindStringSubmatch(name)
			if groups == nil {
				continue
			}
			q := &config.TemplateData{Name: name, Zone: "x.", Type: "A", Class: "IN", Match: groups, Group: map[string]string{"first": groups[1], "second": groups[2]}}
			for i, record := range records {
				rr, err := record(q)
				if err != nil || rr == nil {
					continue
				}
				if h := rr.Header(); h.Name == "secret." || h.Class != dns.ClassINET {
					t.Errorf("%s, record %s: %v", strconv.Quote(name), strconv.Itoa(i), rr)
				}
			}
		}
	})
}
