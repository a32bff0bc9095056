// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// Names of the subjects that the report treats apart from the peers.
const (
	floorName = "floor"
	oursName  = "node-cache"
)

// A subject is a server that is measured.
type subject struct {
	server

	find    func(ctx context.Context, b *serversBench) (path string, err error)
	version []string            // arguments that make it print its version; none: it has none
	overTCP func(s site) string // its configuration with the upstream asked over TCP; nil: it keeps no connections for many queries
	load    string              // the one load that it can serve; empty: all of them, as far as it can be started for them
	tcp     bool                // its config is that with the upstream asked over TCP
}

// subjects returns every server, in the order in which they run and are reported.
func subjects() []subject {
	return []subject{
		{
			server: server{name: floorName, args: func(s site) []string { return []string{loopback, strconv.Itoa(s.port)} }},
			find:   func(ctx context.Context, b *serversBench) (string, error) { return b.buildFloor(ctx) },
			load:   "hit", // it has one fixed answer, over UDP
		},
		{
			server: server{name: oursName, config: nodeCacheConfig, args: func(s site) []string { return []string{"agent", "--config", s.conf} }},
			find: func(_ context.Context, b *serversBench) (string, error) {
				return proctest.LookProgram(b.opts.nodeCache)
			},
			overTCP: nodeCacheOverTCP, version: []string{"version"},
		},
		{
			server:  server{name: "coredns", config: corefile, args: func(s site) []string { return []string{"-quiet", "-conf", s.conf} }},
			find:    func(ctx context.Context, _ *serversBench) (string, error) { return kubetest.Program(ctx, "coredns") },
			overTCP: corefileOverTCP, version: []string{"-version"},
		},
		{
			server: server{name: "unbound", config: unboundConfig, args: func(s site) []string { return []string{"-d", "-c", s.conf} }},
			find:   installed("unbound"), overTCP: unboundOverTCP, version: []string{"-V"},
		},
		{
			server: server{name: "dnsdist", config: dnsdistConfig, args: func(s site) []string { return []string{"--supervised", "--disable-syslog", "-C", s.conf} }},
			find:   installed("dnsdist"), overTCP: dnsdistOverTCP, version: []string{"--version"},
		},
		{
			server: server{name: "kresd", config: kresdConfig, args: func(s site) []string { return []string{"-n", "-q", "-c", s.conf, s.dir} }},
			find:   installed("kresd"), version: []string{"--version"},
		},
		{server: server{name: "dnsmasq", args: dnsmasqArgs}, find: installed("dnsmasq"), version: []string{"--version"}},
		{server: server{name: "pdns_recursor", args: recursorArgs}, find: installed("pdns_recursor"), version: []string{"--version"}},
	}
}

func subjectNames() []string {
	all := subjects()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	return names
}

// installed finds a program of the distribution.
func installed(program string) func(context.Context, *serversBench) (string, error) {
	return func(context.Context, *serversBench) (string, error) { return proctest.LookProgram(program) }
}

// starts are the ways in which a round starts the server.
func (s *subject) starts() []subject {
	starts := []subject{*s}
	if s.overTCP != nil {
		start := *s
		start.config, start.tcp = s.overTCP, true
		starts = append(starts, start)
	}
	return starts
}

// serves reports whether the load is for this start of the server.
func (s *subject) serves(l load) bool {
	return l.overTCP == s.tcp && (s.load == "" || s.load == l.name)
}

// programVersion asks a program for its version; one that does not print it has the version "unknown".
func programVersion(ctx context.Context, path string, args []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil && len(text) == 0 {
		return "unknown"
	}
	return parseVersion(string(text))
}

// parseVersion finds the first word that looks like a version: a digit first, and a dot in it. Ours may be a commit.
func parseVersion(text string) string {
	if rest, ours := strings.CutPrefix(text, oursName+" "); ours {
		return strings.Fields(rest + " unknown")[0]
	}
	for word := range strings.FieldsSeq(text) {
		word = strings.Trim(strings.TrimPrefix(word, "CoreDNS-"), ",;()")
		bare := strings.TrimPrefix(word, "v")
		if bare != "" && bare[0] >= '0' && bare[0] <= '9' && strings.Contains(bare, ".") {
			return word
		}
	}
	return "unknown"
}
