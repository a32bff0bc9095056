// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin/top"
)

// hostileTexts are what others choose: they steer a terminal, forge lines and columns, or reorder them.
func hostileTexts() []string {
	return []string{
		"\x1b[2J\x1b]0;title\a", "a\nok  everything  is well", "a\r\nhint: type this", "a\tb\vc\fd", "\u009b31mred", "\x9b31mred",
		"\u202egnp.exe\u2066", "a\u2028b\u2029c\u0085d", "\x00\x7f\b\b", "\xff\xfe", "\u200b\ufeff\U000e0041",
	}
}

// hostileAgent is an admin server, which has the text wherever an agent's page has that of another.
func hostileAgent(t *testing.T, text string) string {
	t.Helper()
	mux := http.NewServeMux()
	entry := map[string]any{
		"name": text, "type": text, "state": text, "rcode": text, "flags": []string{text}, "subnet": text, "records": []string{text + "\t60 IN TXT " + text},
	}
	row := top.Row{Namespace: text, Pod: text, Workload: text, Counts: top.Counts{Queries: 1}}
	page := func(path string, code int, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			if plain, isText := value.(string); isText {
				_, _ = fmt.Fprint(w, plain)
				return
			}
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	page("/status", http.StatusOK, map[string]any{"state": text})
	page("/kernel", http.StatusOK, map[string]any{"state": text})
	page("/top", http.StatusOK, top.Page{Pods: []top.Row{row}, Names: []top.Name{{Name: text}}})
	page("/cache/get", http.StatusOK, map[string]any{"entries": []any{entry}, "kernel": []string{text}})
	page("/cache/top", http.StatusOK, map[string]any{"entries": []any{entry}, "kernel": []string{text}})
	page("/cache/flush", http.StatusForbidden, text+"\nhint: "+text)
	page("/readyz", http.StatusServiceUnavailable, text)
	page("/watch", http.StatusOK, map[string]any{"time": "2026-01-02T03:04:05Z", "name": text, "type": text, "rcode": text, "source": text, "took_seconds": 1, "client": text, "pod": text, "denied": text, "rule": text})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// hostileServer is a DNS server with the text in its records, and in the error that RFC 8914 has.
func hostileServer(t *testing.T, text string) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		a.SetEdns0(1232, false)
		a.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 22, ExtraText: text}}
		name := strings.NewReplacer("\n", `\010`, "\t", `\009`).Replace(text) + ".test."
		hdr := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}
		a.Answer = []dns.RR{&dns.TXT{Hdr: hdr, Txt: []string{text}}}
		hdr.Rrtype = dns.TypeCNAME
		a.Answer = append(a.Answer, &dns.CNAME{Hdr: hdr, Target: name})
		_ = w.WriteMsg(a)
	})}
	go func() { _ = s.ActivateAndServe() }()
	t.Cleanup(func() { _ = s.Shutdown() })
	return conn.LocalAddr().String()
}

// TestHostileTexts has each text in the output of each command. It makes no line, and nothing but printable characters.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	agent, server := map[string]string{}, map[string]string{}
	for _, text := range append(hostileTexts(), "x") {
		agent[text], server[text] = hostileAgent(t, text), hostileServer(t, text)
	}
	for _, args := range [][]string{
		{"kernel", "status"},
		{"ready"},
		{"watch"},
		{"cache", "get", "a.test"},
		{"cache", "top"},
		{"cache", "flush", "a.test"},
		{"top", "--interval", "100ms"},
		{"top", "--interval", "100ms", "--by", "name"},
		{"top", "--interval", "100ms", "--by", "workload"},
		{"status", "-o", "json"},
		{"kernel", "status", "-o", "json"},
		{"ready", "-o", "json"},
		{"watch", "-o", "json"},
		{"cache", "get", "a.test", "-o", "json"},
		{"cache", "top", "-o", "json"},
		{"top", "-o", "json"},
		{"query", "a.test", "TXT"},
		{"query", "a.test", "TXT", "-o", "json"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			see := func(text string) result {
				if args[0] == "query" {
					return command(append(slices.Clone(args), "--server", server[text])...)
				}
				return command(append(slices.Clone(args), "--admin", agent[text])...)
			}
			want := see("x")
			for _, text := range hostileTexts() {
				got := see(text)
				for _, out := range []struct{ name, want, got string }{{"output", want.Stdout, got.Stdout}, {"errors", want.Stderr, got.Stderr}} {
					if strings.ContainsFunc(out.got, func(c rune) bool {
						return c != '\n' && c != '\t' && c != unicode.ReplacementChar && !unicode.IsPrint(c)
					}) {
						t.Errorf("%q: the %s steers a terminal: %q", text, out.name, out.got)
					}
					if strings.Count(out.want, "\n") != strings.Count(out.got, "\n") {
						t.Errorf("%q: the %s has another number of lines than %q: %q", text, out.name, out.want, out.got)
					}
				}
				if got.Code != want.Code {
					t.Errorf("%q: exit code %d, want %d: %s", text, got.Code, want.Code, got.Stderr)
				}
			}
		})
	}
}
