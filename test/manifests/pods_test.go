// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/watch"
)

// A workload is a pod that some object makes.
type workload struct {
	name string // of the object
	spec corev1.PodSpec
}

// workloads are the pods that a rendering makes.
func workloads(t *testing.T, list []*unstructured.Unstructured) []workload {
	t.Helper()
	var found []workload
	for _, o := range all[appsv1.DaemonSet](t, list, "DaemonSet") {
		found = append(found, workload{o.Name, o.Spec.Template.Spec})
	}
	for _, o := range all[appsv1.Deployment](t, list, "Deployment") {
		found = append(found, workload{o.Name, o.Spec.Template.Spec})
	}
	for _, o := range all[corev1.Pod](t, list, "Pod") {
		found = append(found, workload{o.Name, o.Spec})
	}
	return found
}

// containers are those of a pod, the ones that run first among them.
func containers(spec *corev1.PodSpec) []corev1.Container {
	return append(append([]corev1.Container{}, spec.InitContainers...), spec.Containers...)
}

// A privilege is all that the kernel and the node grant a pod. Whoever grants more has to say so here.
type privilege struct {
	HostNetwork bool
	User        int64
	Add         []corev1.Capability // beside ALL dropped
	HostPaths   []string
	Sysctls     []string
	Token       bool // for the API server
}

// wantPrivilege is what each pod may have.
func wantPrivilege(pod string, iptables bool) privilege {
	switch pod {
	case "node-cache":
		p := privilege{
			HostNetwork: true, Add: []corev1.Capability{"NET_ADMIN", "NET_BIND_SERVICE"},
			HostPaths: []string{"/run/node-cache", "/var/lib/node-cache"}, Token: true,
		}
		if iptables {
			p.Add, p.HostPaths = append(p.Add, "NET_RAW"), append([]string{"/run/xtables.lock"}, p.HostPaths...)
		}
		return p
	case "node-cache-resolver":
		return privilege{User: 65532, Sysctls: []string{"net.ipv4.ip_unprivileged_port_start=0"}, Token: true}
	case "node-cache-cleanup":
		p := privilege{
			HostNetwork: true, Add: []corev1.Capability{"NET_ADMIN"}, HostPaths: []string{"/run/node-cache", "/var/lib/node-cache"},
		}
		if iptables {
			p.Add, p.HostPaths = append(p.Add, "NET_RAW"), append([]string{"/run/xtables.lock"}, p.HostPaths...)
		}
		return p
	default:
		return privilege{User: 65532}
	}
}

// TestOpens lists what each rendering opens: the addresses of the admin servers, and the monitors that read there. Nothing opens what is not
// asked for: without monitoring only the node reaches the agents' pages, and with it only clients with a permission, unless there is an address
// for all.
func TestOpens(t *testing.T) {
	t.Parallel()
	const node, tls = "169.254.20.10:9253", "[::]:9254"
	resolver := "PodMonitor node-cache-resolver"
	for name, want := range map[string]struct {
		address, tls string
		monitors     []string
	}{
		"base":                 {node, "", nil},
		"central":              {node, "", nil},
		"transparent":          {node, "", nil},
		"cilium":               {"[::]:9253", "", nil},
		"dual-stack":           {node, "", nil},
		"ipv6":                 {"[fd00::10]:9253", "", nil},
		"large-cluster":        {node, "", nil},
		"metrics-secure":       {node, tls, []string{resolver, "ServiceMonitor node-cache"}},
		"monitoring":           {"0.0.0.0:9253", "", []string{"PodMonitor node-cache", resolver}},
		"monitoring over IPv6": {"[::]:9253", "", []string{"PodMonitor node-cache", resolver}},
	} {
		for _, by := range []string{byKustomize, byHelm} {
			list := objects(t, rendered(t, name+by))
			var monitors []string
			for _, o := range list {
				if strings.HasSuffix(o.GetKind(), "Monitor") {
					monitors = append(monitors, o.GetKind()+" "+o.GetName())
				}
			}
			cfg := configurations(t, list)["node-cache"]
			opened := ""
			if cfg.Admin.TLSAddress.IsValid() {
				opened = cfg.Admin.TLSAddress.String()
			}
			same(t, name+by+": addresses", []string{want.address, want.tls}, []string{cfg.Admin.Address.String(), opened})
			same(t, name+by+": monitors", want.monitors, sorted(monitors))
		}
	}
}

// TestPrivileges compares the privileges of each pod with those that it may have, and holds each container to what all
// must do.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			list := objects(t, s.text)
			cfg, configured := configurations(t, list)["node-cache"]
			for _, w := range workloads(t, list) {
				for _, c := range containers(&w.spec) {
					iptables := strings.HasSuffix(c.Image, "-iptables")
					want := wantPrivilege(w.name, iptables)
					if strings.HasPrefix(s.name, "cilium ") && w.name == "node-cache" {
						want = wantPrivilege("node-cache-resolver", false)
					}
					if w.name == "node-cache" && configured && cfg.Kernel.Hits != config.KernelOff {
						want.Add = append(want.Add, "BPF", "PERFMON")
					}
					if diff := cmp.Diff(want, privilegeOf(&w.spec, &c)); diff != "" {
						t.Errorf("%s, container %s (-want +got):\n%s", w.name, c.Name, diff)
					}
					checkHardened(t, w.name, &w.spec, &c)
				}
			}
		})
	}
}

// TestKubeletSocket looks for the kubelet's socket in the agents that use it. On a node without its folder they start too.
func TestKubeletSocket(t *testing.T) {
	t.Parallel()
	folder := filepath.Dir(watch.PodsSocket)
	made := corev1.HostPathDirectoryOrCreate
	for name, text := range map[string][]byte{
		"component": rendering{overlay: "base", components: []string{"pods-kubelet"}}.byKustomize(t),
		"kubelet":   chart(t, "--set", "config.agent.pods.identity=kubelet"),
		"auto":      chart(t, "--set", "config.agent.pods.identity=auto"),
	} {
		for _, w := range workloads(t, objects(t, text)) {
			if w.name != "node-cache" {
				continue
			}
			volume := corev1.Volume{Name: "pods-api", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder, Type: &made}}}
			same(t, name+": volume", volume, w.spec.Volumes[len(w.spec.Volumes)-1])
			mounts := w.spec.Containers[0].VolumeMounts
			same(t, name+": mount", corev1.VolumeMount{Name: "pods-api", MountPath: folder, ReadOnly: true}, mounts[len(mounts)-1])
		}
	}
}

func privilegeOf(spec *corev1.PodSpec, c *corev1.Container) privilege {
	p := privilege{HostNetwork: spec.HostNetwork, Token: spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken}
	p.User = -1 // not said: whatever the image says
	if s := spec.SecurityContext; s != nil && s.RunAsUser != nil {
		p.User = *s.RunAsUser
	}
	if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
		p.User = *s.RunAsUser
	}
	if c.SecurityContext != nil && c.SecurityContext.Capabilities != nil {
		p.Add = c.SecurityContext.Capabilities.Add
	}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			p.HostPaths = append(p.HostPaths, v.HostPath.Path)
		}
	}
	if spec.SecurityContext != nil {
		for _, s := range spec.SecurityContext.Sysctls {
			p.Sysctls = append(p.Sysctls, s.Name+"="+s.Value)
		}
	}
	return p
}

// checkHardened holds a container to what is the same for all.
func checkHardened(t *testing.T, name string, spec *corev1.PodSpec, c *corev1.Container) {
	t.Helper()
	want := func(ok bool, what string) {
		t.Helper()
		if !ok {
			t.Errorf("%s, container %s: %s", name, c.Name, what)
		}
	}
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil || spec.SecurityContext == nil {
		t.Fatalf("%s, container %s: no security context", name, c.Name)
	}
	profile := spec.SecurityContext.SeccompProfile
	want(profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault && s.SeccompProfile == nil, "seccomp is not RuntimeDefault")
	want(cmp.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}), "not every capability is dropped")
	want(s.Privileged == nil || !*s.Privileged, "privileged")
	want(s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation, "may escalate")
	want(s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem, "its root filesystem can be written")
	want(!spec.HostPID && !spec.HostIPC && spec.ShareProcessNamespace == nil, "shares processes or memory with the node or other containers")
	want(s.ProcMount == nil && s.SELinuxOptions == nil && s.AppArmorProfile == nil, "a confinement is lifted")

	want(c.Resources.Limits.Memory().Sign() > 0, "no limit of memory")
	want(c.Resources.Limits.Cpu().IsZero(), "a limit of CPU, which would throttle it")
	want(c.Resources.Requests.Memory().Sign() > 0 && c.Resources.Requests.Cpu().Sign() > 0, "it requests nothing")
	for _, p := range c.Ports {
		want(p.HostPort == 0 && !spec.HostNetwork, "a port of the host, which keeps a second pod from the node")
	}
}

// TestIptables looks for the programs of iptables, and the lock that they share with the node's, in each container that
// touches rules, where they were asked for and nowhere else.
func TestIptables(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		asked := strings.Contains(s.name, "iptables") || strings.HasPrefix(s.name, "everything")
		seen := 0
		for _, w := range workloads(t, objects(t, s.text)) {
			for _, c := range containers(&w.spec) {
				want := asked && w.spec.HostNetwork
				locks := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/xtables.lock" && !m.ReadOnly })
				if got := strings.HasSuffix(c.Image, "-iptables"); got != want || locks != want {
					t.Errorf("%s, %s, container %s: image %s, the lock is mounted: %t; want iptables: %t", s.name, w.name, c.Name, c.Image, locks, want)
				}
				if want {
					seen++
				}
			}
		}
		if asked && seen == 0 {
			t.Errorf("%s: nothing has iptables", s.name)
		}
	}
}
