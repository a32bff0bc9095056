// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/pkg/convert"
)

// TestPodsAgreeWithConverted puts into the pods of base what was converted for them, as docs/migrating.md says.
func TestPodsAgreeWithConverted(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"CoreDNS":            ". {\n kubernetes cluster.local in-addr.arpa ip6.arpa\n prometheus :9153\n cache 30\n forward . /etc/resolv.conf\n}\n",
		"NodeLocal DNSCache": "cluster.local {\n bind 169.254.20.10 10.96.0.10\n prometheus :9253\n forward . __PILLAR__CLUSTER__DNS__\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, r := basePod(t), convertForBase(t, text)
			checkAgreement(t, &spec, &r.Config)
			for _, n := range r.Notes {
				if n.File == "daemonset/base" {
					t.Errorf("note %s, and nothing has to be changed", n)
				}
			}
		})
	}
}

// TestConvertKnowsMemory checks that the cache that is said to be too large is the first that is.
func TestConvertKnowsMemory(t *testing.T) {
	t.Parallel()
	spec := basePod(t)
	room := spec.Containers[0].Resources.Limits.Memory().Value() - 64<<20
	for size, want := range map[int64]bool{room: false, room + 1<<20: true} {
		r := convertForBase(t, fmt.Sprintf(". {\n cache {\n  success %d\n }\n forward . 192.0.2.1\n}\n", size/512))
		if got := slices.ContainsFunc(r.Notes, func(n convert.Note) bool { return strings.HasPrefix(n.What, "cache.size") }); got != want {
			t.Errorf("a cache of %d bytes: a note: %t, want %t", r.Config.Cache.Size, got, want)
		}
	}
}

// basePod is the agents' pod of base.
func basePod(t *testing.T) corev1.PodSpec {
	t.Helper()
	for _, w := range workloads(t, objects(t, rendered(t, "base"+byKustomize))) {
		if w.name == "node-cache" {
			return w.spec
		}
	}
	t.Fatal("base has no agents")
	return corev1.PodSpec{}
}

// convertForBase converts a Corefile for the pods of base.
func convertForBase(t *testing.T, text string) *convert.Result {
	t.Helper()
	r, err := convert.Files([]convert.Input{{Name: "Corefile", Text: []byte(text)}}, convert.Options{})
	must(t, err)
	must(t, r.ForDaemonSet())
	return r
}
