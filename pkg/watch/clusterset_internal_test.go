// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

// TestInvalidImports puts objects that break the rules of the API, as no CRD or another one lets them through. They are
// counted and named, and an object that is valid again, or gone, no longer counts.
func TestInvalidImports(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, spec string // of the import
		want       string // the reason; empty: it is served
	}{
		{"web", `{"type": "ClusterSetIP", "ips": ["10.97.0.1"], "ports": [{"name": "http", "port": 80}]}`, ""},
		{"no-ports", `{"type": "ClusterSetIP", "ips": ["10.97.0.1"]}`, ""},
		{"pending", `{"type": "ClusterSetIP"}`, ""},
		{"db", `{"type": "Headless", "ips": ["None"], "status": 1}`, ""},
		{"a.b", `{"type": "Headless"}`, "metadata.name: not a DNS label"},
		{"no-type", `{}`, `spec.type: "": not a type of ServiceImport`},
		{"type", `{"type": "\u001b[2J"}`, `spec.type: "\x1b[2J": not a type of ServiceImport`},
		{"address", `{"type": "ClusterSetIP", "ips": ["10.97.0.1", "10.97.0"]}`, `spec.ips: "10.97.0": not an IP address`},
		{"scoped", `{"type": "ClusterSetIP", "ips": ["fe80::1%eth0"]}`, `spec.ips: "fe80::1%eth0": not an IP address`},
		{"three", `{"type": "ClusterSetIP", "ips": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]}`, "spec.ips: 3 addresses, at most 2"},
		{"port", `{"type": "ClusterSetIP", "ports": [{"port": 3e12}]}`, `spec.ports[0]: 3e+12/"": not a port`},
		{"protocol", `{"type": "Headless", "ports": [{"port": 1}, {"port": 2, "protocol": "X"}]}`, `spec.ports[1]: 2/"X": not a port`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, now := zone.NewStore(), time.Now()
			v := &kindStatus{kind: zone.Services, counted: zone.Imports, store: store}
			v.add()
			to := zoneTarget(store, v, putImported)
			i := decodedImport(t, fmt.Sprintf(`{"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
				"metadata": {"name": %q, "namespace": "shop"}, "spec": %s}`, tt.name, tt.spec))
			to.put(i, now)
			stats := v.stats(now)
			want := ""
			if tt.want != "" {
				want = "shop/" + tt.name + ": " + tt.want
			}
			assert.Same(t, "the reason", want, stats.FirstInvalid)
			assert.Same(t, "served", tt.want == "", store.Stats().Kinds[zone.Services].Objects == 1)
			to.remove("shop", tt.name, now)
			assert.Same(t, "invalid without the object", 0, v.stats(now).Invalid)
			to.put(i, now)
			to.retain(func(_, name string) bool { return name != tt.name }, now)
			assert.Same(t, "invalid after a list without it", 0, v.stats(now).Invalid)
		})
	}
}

// TestInvalidExternals counts and names Services whose external addresses are not all served. Without external names, none is.
func TestInvalidExternals(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 1025 {
		many = append(many, fmt.Sprintf("198.18.%d.%d", i>>8, i&255))
	}
	for _, tt := range []struct {
		name    string
		ips     []string
		ingress []corev1.LoadBalancerIngress
		want    string // the reason; empty: all is served
	}{
		{name: "none"},
		{name: "most", ips: append(many[:1024:1024], many[:1024]...), ingress: []corev1.LoadBalancerIngress{{IP: "2001:db8::1"}}},
		{name: "more", ips: many, want: "external addresses: 1025 of a family, at most 1024 are served"},
		{name: "address", ips: []string{"192.0.2.1", "010.0.0.1"}, want: `external addresses: "010.0.0.1": not an IP address`},
		{name: "ingress", ingress: []corev1.LoadBalancerIngress{{IP: "fe80::1%eth0"}}, want: `external addresses: "fe80::1%eth0": not an IP address`},
		{name: "nothing", ingress: []corev1.LoadBalancerIngress{{}}},
		{name: "host", ingress: []corev1.LoadBalancerIngress{{Hostname: "lb.example"}, {Hostname: "other.example"}}},
		{name: "label", ingress: []corev1.LoadBalancerIngress{{Hostname: strings.Repeat("x", 64)}}, want: `external host name: "` + strings.Repeat("x", 64) + `": not a domain name`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: tt.name}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: tt.ips}}
			svc.Status.LoadBalancer.Ingress = tt.ingress
			want := ""
			if tt.want != "" {
				want = "shop/" + tt.name + ": " + tt.want
			}
			for external, want := range map[bool]string{true: want, false: ""} {
				cfg := Config{Store: zone.NewStore(), External: external}
				v := &kindStatus{kind: zone.Services, counted: zone.Services, store: cfg.Store}
				v.add()
				zoneTarget(cfg.Store, v, cfg.put).put(svc, time.Now())
				assert.Same(t, "the reason", want, v.stats(time.Now()).FirstInvalid)
				assert.Same(t, "objects", int64(1), cfg.Store.Stats().Kinds[zone.Services].Objects)
			}
		})
	}
}

// decodedImport decodes as the client of the API server does, in both versions.
func decodedImport(t *testing.T, text string) runtime.Object {
	t.Helper()
	codecs := serializer.NewCodecFactory(newScheme()).WithoutConversion()
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	o, _, err := codecs.DecoderToVersion(info.Serializer, importVersions()[1]).Decode([]byte(text), nil, nil)
	assert.NoError(t, err)
	return o
}

// TestManyInvalidImports bounds what is kept of them.
func TestManyInvalidImports(t *testing.T) {
	t.Parallel()
	v := &kindStatus{}
	v.add()
	for i := range 2 * maxInvalid {
		v.noteInvalid("shop", fmt.Sprint(i), errUnrequested)
	}
	assert.Same(t, "counted", maxInvalid, v.stats(time.Now()).Invalid)
}

// TestImportedSlices names the clusters that endpoints can be named by.
func TestImportedSlices(t *testing.T) {
	t.Parallel()
	for cluster, valid := range map[string]bool{
		"east": true, "clusterA": true, "721ab723-13bc-11e5-aec2-42010af0021e": true, "a.b": false, "a_b": false, "": false, "-": false,
	} {
		es := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelImport: "db", labelCluster: cluster}}}
		_, ok, err := importedSliceOf(es)
		assert.Same(t, cluster, valid, ok && err == nil)
		es.Labels[labelImport] = ""
		_, ok, err = importedSliceOf(es)
		assert.Same(t, cluster+" of no import", false, ok || err != nil)
	}
}
