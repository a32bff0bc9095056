// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
)

// FuzzParse holds Parse to its contract: a plan that survives Marshal, or a [config.Error] with a text.
func FuzzParse(f *testing.F) {
	all, err := config.Marshal(config.Default(config.Agent)) // not the reference: comments only make inputs long
	assert.NoError(f, err)
	f.Add(all)
	f.Add([]byte("forward: [{zone: ., to: ['[::1]:54', 'tcp://192.0.2.1', /a/../b]}]\ncache: {prefetch: {remaining: 12.25%}}"))
	f.Add([]byte("clusterDomain: K8s.Example\ncluster: {resolver: local, manifests: ./a/../b, central: {addresses: ['[::1]:54'], connections: 16}, " +
		"endpoints: all, namespaces: [a], serviceSelector: 'a in (b,c),!d', ranges: [10.0.0.0/8], transferTo: [192.0.2.1, '::/0', '192.0.2.2:54'], transferKeys: k}"))
	f.Add([]byte("listen: {addresses: [169.254.20.10, 'fd00::53']}\ninterface: {manage: true, name: dns0, kind: lo}\n" +
		"intercept: {manage: true, lease: 1500ms, fallback: ['[::1]:54', 10.0.0.1], onExit: fallback}"))
	f.Add([]byte("listen: {addresses: [169.254.20.10], port: 53}\nintercept: {manage: true, mode: transparent, backend: iptables, fallback: none, services: [10.96.0.10]}"))
	f.Add([]byte("forward: [{zone: ., to: ['tls://[::1]:54#A.b.', 'https://192.0.2.1/%20#a', 'https://a.B:1/'], bootstrap: ['::1'], " +
		"policy: random, connections: 16, rate: 1, case: off, trustAD: on, tls: {ca: ./a/../b}, https: {method: get}}]"))
	f.Add([]byte("forward: [{zone: ., to: ['::1'], minTTL: 0s, maxTTL: 1s, negativeTTL: 1s, cache: off}]\ncluster: {resolver: central, invalidate: true, " +
		"central: {service: a/b}}\ncache: {serveStale: {for: 0s, ttl: 1s, after: 10ms}, nxdomainCut: 'off'}\nlimits: {perClient: 1}\n" +
		"snapshot: {folder: ./a, period: 10s, size: 1Mi, maxAge: 1m}\nadmin: {socket: /a/../b}"))
	f.Add([]byte("hosts: {files: [./a/../b], names: {B.a.: ['::1', 0.0.0.0]}, ttl: 0s, reverse: off}\nrewrite: [{exact: a, to: b.}, {prefix: p-, to: ''}, {suffix: .a, to: b}]\n" +
		"templates: [{zone: a, types: [A, TYPE9], match: ['^(?P<h>[a-z]{2,3}|x)[.]a'], rcode: REFUSED, answer: ['{{ .Group.h }} A 192.0.2.1'], additional: ['{{ if .Type }}x TXT y{{ end }}']}]"))
	f.Add([]byte("dns64: {prefix: '64:ff9b::/96', translateAll: true, clients: all}\nhandover: {socket: /a/../b}\n" +
		"probes: [{label: a-b, server: 'tcp://[::1]:54', name: ., type: SRV, interval: 1s, timeout: 10ms}]"))
	files, err := filepath.Glob("testdata/bad-*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		assert.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		holdContract(t, data, config.Agent)
		holdContract(t, data, config.Resolver)
	})
}

func holdContract(t *testing.T, data []byte, role config.Role) {
	t.Helper()
	c, err := config.Parse(data, role)
	if err == nil {
		roundTrip(t, c, role)
		return
	}
	problems, ok := errors.AsType[*config.Error](err)
	if !ok || len(problems.Problems) == 0 {
		t.Fatalf("error %#v, want a *config.Error with problems", err)
	}
	for _, p := range problems.Problems {
		if p.What == "" {
			t.Errorf("problem %+v has no text", p)
		}
	}
	assert.Same(t, "plan beside an error", config.Config{}, c, plain())
}
