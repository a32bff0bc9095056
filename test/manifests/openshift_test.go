// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// A constraint is a SecurityContextConstraints of OpenShift, with every field of its documentation that this one has.
type constraint struct {
	APIVersion               string         `json:"apiVersion"`
	Kind                     string         `json:"kind"`
	Metadata                 map[string]any `json:"metadata"`
	AllowHostNetwork         bool           `json:"allowHostNetwork"`
	AllowHostPorts           bool           `json:"allowHostPorts"`
	AllowHostPID             bool           `json:"allowHostPID"`
	AllowHostIPC             bool           `json:"allowHostIPC"`
	AllowHostDirVolumePlugin bool           `json:"allowHostDirVolumePlugin"`
	Volumes                  []string       `json:"volumes"`
	RunAsUser                struct {
		Type string `json:"type"`
		UID  *int64 `json:"uid"`
	} `json:"runAsUser"`
	RequiredDropCapabilities []corev1.Capability `json:"requiredDropCapabilities"`
	AllowedCapabilities      []corev1.Capability `json:"allowedCapabilities"`
	DefaultAddCapabilities   []corev1.Capability `json:"defaultAddCapabilities"`
	AllowPrivilegedContainer bool                `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation bool                `json:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool                `json:"readOnlyRootFilesystem"`
	SeccompProfiles          []string            `json:"seccompProfiles"`
	SELinuxContext           struct {
		Type           string                `json:"type"`
		SELinuxOptions corev1.SELinuxOptions `json:"seLinuxOptions"`
	} `json:"seLinuxContext"`
	FSGroup            struct{ Type string } `json:"fsGroup"`
	SupplementalGroups struct{ Type string } `json:"supplementalGroups"`
	Users              []string              `json:"users"`
}

// TestOpenShiftConstraint has the constraints allow each permission that the pods of agents and clean-up ask for, and nothing more.
func TestOpenShiftConstraint(t *testing.T) {
	t.Parallel()
	var got constraint
	must(t, yaml.UnmarshalStrict(content(t, "daemonset/openshift/scc.yaml"), &got))
	var want constraint
	volumes, capabilities, profiles := map[string]bool{}, map[corev1.Capability]bool{}, map[string]bool{}
	want.ReadOnlyRootFilesystem = true
	for _, name := range []string{"base" + byKustomize, "base" + byHelm, "transparent" + byKustomize, "large-cluster" + byKustomize, "uninstall"} {
		for _, w := range workloads(t, objects(t, rendered(t, name))) {
			if !w.spec.HostNetwork {
				continue // the test pod of Helm
			}
			want.ask(t, &w.spec, volumes, capabilities, profiles)
		}
	}
	want.APIVersion, want.Kind, want.Metadata = "security.openshift.io/v1", "SecurityContextConstraints", got.Metadata
	want.Volumes, want.AllowedCapabilities = slices.Sorted(maps.Keys(volumes)), slices.Sorted(maps.Keys(capabilities))
	want.SeccompProfiles = slices.Sorted(maps.Keys(profiles))
	want.RequiredDropCapabilities = []corev1.Capability{"ALL"} // checkHardened
	want.RunAsUser.Type, want.SELinuxContext.Type, want.FSGroup.Type, want.SupplementalGroups.Type = "MustRunAs", "MustRunAs", "RunAsAny", "RunAsAny"
	want.SELinuxContext.SELinuxOptions = corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	for _, account := range []string{"node-cache", "node-cache-cleanup"} {
		want.Users = append(want.Users, "system:serviceaccount:"+namespace+":"+account)
	}
	same(t, "constraints", want, got)
}

// ask adds what a pod asks for.
func (c *constraint) ask(t *testing.T, spec *corev1.PodSpec, volumes map[string]bool, capabilities map[corev1.Capability]bool, profiles map[string]bool) {
	t.Helper()
	c.AllowHostNetwork = c.AllowHostNetwork || spec.HostNetwork
	c.AllowHostPID, c.AllowHostIPC = c.AllowHostPID || spec.HostPID, c.AllowHostIPC || spec.HostIPC
	profiles[strings.Replace(string(spec.SecurityContext.SeccompProfile.Type), "RuntimeDefault", "runtime/default", 1)] = true
	if s := spec.SecurityContext; s.FSGroup != nil || s.SupplementalGroups != nil || s.SELinuxOptions != nil {
		t.Errorf("a pod asks for groups or an SELinux context: %+v", s)
	}
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		volumes["projected"] = true // the server mounts it
	}
	for _, v := range spec.Volumes {
		switch {
		case v.HostPath != nil:
			volumes["hostPath"], c.AllowHostDirVolumePlugin = true, true
		case v.ConfigMap != nil:
			volumes["configMap"] = true
		case v.EmptyDir != nil:
			volumes["emptyDir"] = true
		default:
			t.Errorf("volume %s: this test does not know its kind", v.Name)
		}
	}
	for _, container := range containers(spec) {
		s := container.SecurityContext
		for _, capability := range s.Capabilities.Add {
			capabilities[capability] = true
		}
		c.RunAsUser.UID = s.RunAsUser
		c.AllowPrivilegeEscalation = c.AllowPrivilegeEscalation || *s.AllowPrivilegeEscalation
		c.AllowPrivilegedContainer = c.AllowPrivilegedContainer || s.Privileged != nil && *s.Privileged
		c.ReadOnlyRootFilesystem = c.ReadOnlyRootFilesystem && *s.ReadOnlyRootFilesystem
		c.AllowHostPorts = c.AllowHostPorts || len(container.Ports) > 0
	}
}

// TestOpenShiftPage installs the values of docs/platforms/openshift.md: the agents' parts agree, with no link-local address.
func TestOpenShiftPage(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(string(content(t, "docs/platforms/openshift.md")), "```yaml\n")
	text, _, _ = strings.Cut(text, "```\n")
	list := objects(t, chart(t, "-f", valuesFile(t, text)))
	cfg := configurations(t, list)["node-cache"]
	for _, w := range workloads(t, list) {
		if w.name == "node-cache" {
			checkAgreement(t, &w.spec, &cfg)
		}
	}
	_, text, _ = strings.Cut(string(content(t, "docs/platforms/openshift.md")), "-f - ")
	command, _, _ := strings.Cut(text, " |") // the account of the clean-up
	args := append([]string{"kubectl", "set", "serviceaccount", "-f", "-"}, strings.Fields(command)...)
	out, err := run(t.Context(), rendered(t, "uninstall"), program(t, "kube"), args...)
	must(t, err)
	same(t, "account of the clean-up", "node-cache-cleanup", podTemplates(t, objects(t, out))["node-cache-cleanup"].Spec.ServiceAccountName)
	if addr := cfg.Listen.Addresses[0]; addr.IsLinkLocalUnicast() {
		t.Errorf("the agents listen on %s, which is link-local: for OVN-Kubernetes it is no address of the node", addr)
	}
}

// TestHardenedVariant holds the token of a node to what docs/security.md says: it lists nothing of the whole cluster.
func TestHardenedVariant(t *testing.T) {
	t.Parallel()
	central := []string{"-f", "../../daemonset/chart/presets/central.yaml"}
	for name, text := range map[string][]byte{
		"kustomize": rendered(t, "central"+byKustomize), "helm": rendered(t, "central"+byHelm),
		"helm without zones": chart(t, append(central, "--set", "config.agent.cluster.nodeZone=")...),
	} {
		for _, line := range permissions(t, text)["node-cache"] {
			if strings.HasPrefix(line, "everywhere: ") && (line != "everywhere: get nodes" || strings.Contains(name, "without")) {
				t.Errorf("%s: a node may %s", name, line)
			}
		}
	}
}

// root is the repository, seen from here.
const root = "../.."

// content reads a file of the repository.
func content(t *testing.T, path string) []byte {
	t.Helper()
	return readFile(t, filepath.Join(root, path))
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return text
}
