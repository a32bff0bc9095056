// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A multiCluster is a cluster with objects of the Multi-Cluster Services API, which the test writes as a controller would.
type multiCluster struct{ *kubetest.Cluster }

// The resources of the API.
const (
	crdPath    = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/serviceimports.multicluster.x-k8s.io"
	importPath = "/apis/multicluster.x-k8s.io/"
)

// apply creates or changes an object.
func (m multiCluster) apply(t *testing.T, path string, o map[string]any) error {
	t.Helper()
	body, err := json.Marshal(o)
	assert.NoError(t, err)
	return m.Client().Discovery().RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(path).
		Param("fieldManager", "test").Param("force", "true").Body(body).Do(t.Context()).Error()
}

// remove deletes an object.
func (m multiCluster) remove(t *testing.T, path string) {
	t.Helper()
	assert.NoError(t, m.Client().Discovery().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error())
}

// serve installs the CRD of the module sigs.k8s.io/mcs-api with the versions that are served, the first of which is
// stored, and waits until the API server has them.
func (m multiCluster) serve(t *testing.T, served ...string) {
	t.Helper()
	var crd map[string]any
	assert.NoError(t, yaml.Unmarshal(importCRD(t), &crd))
	for _, version := range crd["spec"].(map[string]any)["versions"].([]any) {
		v := version.(map[string]any)
		v["served"], v["storage"] = slices.Contains(served, v["name"].(string)), v["name"] == served[0]
	}
	assert.NoError(t, m.apply(t, crdPath, crd))
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		proctest.Eventually(t, limit, "the CRD has its versions", func() bool {
			err := m.Client().Discovery().RESTClient().Get().AbsPath(importPath + version + "/serviceimports").Do(t.Context()).Error()
			return (err == nil) == slices.Contains(served, version)
		})
	}
}

// importCRD reads the CRD from the module that CoreDNS is built with.
func importCRD(t *testing.T) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/mcs-api")
	cmd.Dir = filepath.Join("..", "coredns")
	out, err := cmd.Output()
	assert.NoError(t, err)
	var module struct{ Dir string }
	assert.NoError(t, json.Unmarshal(out, &module))
	text, err := os.ReadFile(filepath.Join(module.Dir, "config", "crd", "multicluster.x-k8s.io_serviceimports.yaml"))
	assert.NoError(t, err)
	return text
}

// tryImport writes a ServiceImport of namespace shop.
func (m multiCluster) tryImport(t *testing.T, version, name, kind string, ips []string, ports ...any) error {
	t.Helper()
	spec := map[string]any{"type": kind, "ports": append([]any{}, ports...)}
	if ips != nil {
		spec["ips"] = ips
	}
	return m.apply(t, importPath+version+"/namespaces/shop/serviceimports/"+name, map[string]any{
		"apiVersion": "multicluster.x-k8s.io/" + version, "kind": "ServiceImport",
		"metadata": map[string]any{"name": name, "namespace": "shop"}, "spec": spec,
	})
}

// putImport is tryImport for one that the API server accepts.
func (m multiCluster) putImport(t *testing.T, version, name, kind string, ips []string, ports ...any) {
	t.Helper()
	assert.NoError(t, m.tryImport(t, version, name, kind, ips, ports...))
}

// importPort is a port of a ServiceImport.
func importPort(name string, number int64) any {
	return map[string]any{"name": name, "port": number, "protocol": "TCP"}
}

// importedSlice is a slice of an import from a cluster.
func importedSlice(service, cluster string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := newSlice("", service+"-"+cluster, slicePorts("sql:5432"), endpoints...)
	s.Labels = map[string]string{
		"multicluster.kubernetes.io/service-name": service, "multicluster.kubernetes.io/source-cluster": cluster,
	}
	return s
}

// openSet writes a ClusterSetIP import and a headless one with endpoints in two clusters.
func (m multiCluster) openSet(t *testing.T, version string) {
	t.Helper()
	kubetest.Apply(t, m.Cluster, kubetest.Namespace("shop"))
	m.putImport(t, version, "web", "ClusterSetIP", []string{"10.97.0.1", "fd00:97::1"}, importPort("http", 80))
	m.putImport(t, version, "db", "Headless", nil, importPort("sql", 5432))
	kubetest.Apply(t, m.Cluster,
		importedSlice("db", "east", endpoint("10.1.0.1", named("db-0")), endpoint("10.1.0.2", named("db-1")), endpoint("10.1.0.3", unready)),
		importedSlice("db", "west", endpoint("10.2.0.1", named("db-0"))))
}
