// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
)

// kubeProxy are as many rules as kube-proxy makes for some thousands of services.
func kubeProxy(services int) string {
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n")
	for i := range services {
		fmt.Fprintf(&b, ":KUBE-SVC-%d - [0:0]\n", i)
	}
	b.WriteString("-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n")
	for i := range services {
		fmt.Fprintf(&b, "-A KUBE-SERVICES -d 10.97.%d.%d/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-%d\n", i/250, i%250, i)
		for j := range 3 {
			fmt.Fprintf(&b, "-A KUBE-SVC-%d -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.%d.%d:80\n", i, j, i%250)
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// BenchmarkBesideKubeProxy is what a reconcile costs on a node with 20,000 rules in nat.
func BenchmarkBesideKubeProxy(b *testing.B) {
	for _, v := range variants() {
		hosts, backend := openNode(b, v)
		restore(b, hosts, kubeProxy(5000), restorers(v)[0])
		r, shorter := linkLocal(), linkLocal()
		shorter.Fallback = r.Fallback[:2]
		b.Run(string(v)+"/changed", func(b *testing.B) {
			for b.Loop() {
				apply(b, backend, r)
				r, shorter = shorter, r
			}
		})
		apply(b, backend, r)
		b.Run(string(v)+"/unchanged", func(b *testing.B) {
			for b.Loop() {
				apply(b, backend, r)
			}
		})
		b.Run(string(v)+"/unchanged, full read", func(b *testing.B) {
			defer func(now func() time.Time) { backend.own.now = now }(backend.own.now)
			at := time.Now()
			backend.own.now = func() time.Time { at = at.Add(20 * time.Second); return at } // a read per two
			for b.Loop() {
				apply(b, backend, r)
			}
		})
		b.Run(string(v)+"/renewal", func(b *testing.B) {
			for b.Loop() {
				assert.NoError(b, backend.Renew(context.Background(), r.Addresses, time.Second))
			}
		})
	}
}
