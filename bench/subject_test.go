// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, want string
	}{
		{name: "unbound", text: "Version 1.17.1\n\nConfigure line: --build=x86_64\n", want: "1.17.1"},
		{name: "dnsdist", text: "dnsdist 1.7.3 (Lua 5.1.4 [LuaJIT 2.1.0-beta3])", want: "1.7.3"},
		{name: "kresd", text: "Knot Resolver, version 5.6.0\n", want: "5.6.0"},
		{name: "dnsmasq", text: "Dnsmasq version 2.90  Copyright (c) 2000-2024 Simon Kelley\n", want: "2.90"},
		{name: "a date before the version", text: "Nov 20 22:40:23 PowerDNS Recursor 4.8.8 (C) 2001-2022", want: "4.8.8"},
		{name: "coredns", text: "CoreDNS-1.14.7\nlinux/amd64, go1.26.8, \n", want: "1.14.7"},
		{name: "node-cache", text: "node-cache v0.1.0-3-gabcdef0 (go1.26.8)\n", want: "v0.1.0-3-gabcdef0"},
		{name: "node-cache without a tag", text: "node-cache b7077ef go1.26.8 linux/amd64\n", want: "b7077ef"},
		{name: "none", text: "usage: server [flags]\n", want: "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := parseVersion(tt.text); got != tt.want {
				t.Errorf("parseVersion = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestConfigsPoint checks that each server listens where it is asked and forwards to the upstream.
func TestConfigsPoint(t *testing.T) {
	t.Parallel()
	at := site{dir: "/run/x", conf: "/run/x/conf", port: 5999, upstream: 5888, admin: 5777, cluster: "/run/x/manifests"}
	for _, s := range subjects() {
		if s.name == floorName {
			continue
		}
		text := strings.Join(s.args(at), " ")
		if s.config != nil {
			if !strings.Contains(text, at.conf) {
				t.Errorf("%s is not given its configuration: %s", s.name, text)
			}
			text = s.config(at)
		}
		if s.zone != nil {
			if zone := s.zone(at); !strings.HasPrefix(zone, text) || !strings.Contains(zone, at.cluster) {
				t.Errorf("%s does not read the manifests in %s with its zone:\n%s", s.name, at.cluster, zone)
			}
		}
		texts := []string{text}
		if s.overTCP != nil {
			if texts = append(texts, s.overTCP(at)); !strings.Contains(strings.ToLower(texts[1]), "tcp") {
				t.Errorf("%s says nothing of TCP:\n%s", s.name, texts[1])
			}
		}
		for _, text := range texts {
			for _, port := range []int{at.port, at.upstream} {
				if strings.Count(text, strconv.Itoa(port)) != 1 {
					t.Errorf("%s does not name port %d once:\n%s", s.name, port, text)
				}
			}
		}
	}
}

// TestFloorAnswers compiles the floor and asks it as dnsperf does.
func TestFloorAnswers(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	h := &harness{dir: t.TempDir()}
	path, err := h.buildFloor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	port := int(proctest.FreeAddr(t).Port())
	p, err := launch(t.Context(), serverCPU, h.dir, floorName, []string{path, loopback, strconv.Itoa(port)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := h.awaitAnswer(t.Context(), p, port, upstreamHost); err != nil {
		t.Fatal(err)
	}
	query := new(dns.Msg).SetQuestion("Some.Name.example.", dns.TypeA).SetEdns0(1232, true)
	reply, _, err := new(dns.Client).ExchangeContext(t.Context(), query, loopback+":"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := reply.Question, query.Question; !slices.Equal(got, want) {
		t.Errorf("question %v, want %v", got, want)
	}
	if len(reply.Answer) != 1 || len(reply.Extra) != 0 || !reply.Response || reply.Rcode != dns.RcodeSuccess {
		t.Fatalf("reply:\n%s", reply)
	}
	if got, want := reply.Answer[0].String(), "Some.Name.example.\t30\tIN\tA\t10.0.0.1"; got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
}

func TestFloorReportsABadAddress(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	h := &harness{dir: t.TempDir()}
	path, err := h.buildFloor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, err := launch(t.Context(), serverCPU, h.dir, floorName, []string{path, "192.0.2.1", "53"}) // for documentation (RFC 5737)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if got, want := h.lastLine(p), "floor: binding: Cannot assign requested address"; got != want {
		t.Errorf("lastLine = %q, want %q", got, want)
	}
}
