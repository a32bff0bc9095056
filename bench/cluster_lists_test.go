// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
)

// TestListsAskForWhatIsThere writes the lists of a cluster and holds them against its objects.
func TestListsAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{} // lines of the lists that have an answer
	var services []corev1.Service
	for _, o := range kubetest.Large(50, 5, endpointsPer) {
		switch o := o.(type) {
		case *corev1.Service:
			if o.Spec.ClusterIP == "" { // the API server gives it one
				o.Spec.ClusterIP = fmt.Sprintf("10.96.1.%d", len(services))
				reverse, err := dns.ReverseAddr(o.Spec.ClusterIP)
				assert.NoError(t, err)
				exists[strings.TrimSuffix(reverse, ".")+" PTR"] = true
				exists["_http._tcp."+nameOf(*o)+" SRV"] = true
			}
			exists[nameOf(*o)+" A"] = true
			services = append(services, *o)
		case *discoveryv1.EndpointSlice:
			for _, e := range o.Endpoints {
				label := strings.ReplaceAll(e.Addresses[0], ".", "-")
				if e.Hostname != nil {
					label = *e.Hostname
				}
				exists[fmt.Sprintf("%s.%s.%s.svc.%s A", label, o.Labels[discoveryv1.LabelServiceName], o.Namespace, domain)] = true
			}
		}
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		assert.NoError(t, writeLists(dir, services))
	}
	for _, l := range clusterLoads() {
		lines := readLines(t, dirs[0], l.list)
		if !cmp.Equal(lines, readLines(t, dirs[1], l.list)) {
			t.Errorf("%s differs between two runs", l.name)
		}
		assert.Equal(t, l.name+": lines", zipfLines, len(lines))
		for _, line := range lines {
			if want := l.rcode == "NOERROR"; exists[line] != want {
				t.Fatalf("%s asks for %q, which exists: %t, want %t", l.name, line, exists[line], want)
			}
		}
	}
}
