// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// A dataPlane forwards packets to Services.
type dataPlane struct {
	proxy     string   // the mode of kube-proxy, with its default; empty: no kube-proxy was seen
	proxyRead bool     // its mode was read
	others    []string // what else handles packets to Services, but Cilium
	networks  []string // network plugins that were seen, for the reader
	cilium    *cilium  // nil: it was not seen
}

// A cilium is Cilium's version and settings. Of a setting that is missing the value is empty.
type cilium struct {
	version    string // of its image, such as 1.18.2; empty: not known
	minor      int
	settings   map[string]string
	configured bool // the settings were read
}

func (c *cilium) replacesProxy() bool {
	return c.settings["kube-proxy-replacement"] == "true" || c.settings["kube-proxy-replacement"] == "strict"
}

func (c *cilium) redirects() bool { return c.settings["enable-local-redirect-policy"] == "true" }

// findDataPlane recognises what it can from DaemonSets, the pods of kube-system and ConfigMaps.
func (f *Facts) findDataPlane() dataPlane {
	var p dataPlane
	networks := map[string]string{
		"calico-node": "Calico", "antrea-agent": "Antrea", "kube-router": "kube-router", "azure-cns": "Azure CNI", "aws-node": "Amazon VPC CNI", "kube-flannel-ds": "Flannel",
	}
	for i := range f.DaemonSets {
		d := &f.DaemonSets[i]
		if network := networks[d.Name]; network != "" {
			p.networks = append(p.networks, network)
		}
		switch {
		case IsCilium(d):
			p.cilium = f.readCilium(d)
		case d.Name == "calico-node" && (f.CalicoBPF || environment(d, "FELIX_BPFENABLED") == "true"):
			p.others = append(p.others, "Calico's eBPF data plane")
		case d.Name == "antrea-agent" && f.antreaProxiesAll():
			p.others = append(p.others, "Antrea's proxyAll")
		case d.Name == "kube-router" && flag(arguments(&d.Spec.Template.Spec), "run-service-proxy") == "true":
			p.others = append(p.others, "kube-router's IPVS proxy")
		case d.Name == "ovnkube-node":
			p.others = append(p.others, ovnKubernetes)
		}
	}
	p.proxy, p.proxyRead = f.kubeProxy(len(p.others) == 0 && p.cilium == nil)
	return p
}

const ovnKubernetes = "OVN-Kubernetes"

// usesProxy reports whether kube-proxy, and nothing else, forwards packets to Services.
func (p *dataPlane) usesProxy() bool { return p.proxy != "" && len(p.others) == 0 && p.cilium == nil }

// unknown reports whether nothing that forwards packets to Services was recognised.
func (p *dataPlane) unknown() bool { return p.proxy == "" && len(p.others) == 0 && p.cilium == nil }

// kubeProxy returns the mode of kube-proxy, empty if it was not seen, and whether the mode was read; else it is the default. The
// ConfigMap counts without a pod if alone, since a kube-proxy that is no pod may read it: where another data plane took over, it is
// often left behind.
func (f *Facts) kubeProxy(alone bool) (mode string, read bool) {
	commands := f.proxyCommands()
	for _, command := range commands {
		if mode := flag(command, "proxy-mode"); mode != "" {
			return mode, true
		}
	}
	if mode := f.configuredMode(); mode != "" && (alone || len(commands) > 0) {
		return mode, true
	}
	if len(commands) > 0 {
		return defaultMode, false
	}
	return "", false
}

const defaultMode = "iptables" // of kube-proxy on Linux

// proxyCommands returns the command lines of kube-proxy.
func (f *Facts) proxyCommands() (list [][]string) {
	for i := range f.DaemonSets {
		if d := &f.DaemonSets[i]; d.Name == "kube-proxy" {
			list = append(list, arguments(&d.Spec.Template.Spec))
		}
	}
	for i := range f.SystemPods { // static pods, as of GKE and RKE2
		if p := &f.SystemPods[i]; p.Labels["component"] == "kube-proxy" || p.Labels["k8s-app"] == "kube-proxy" || strings.HasPrefix(p.Name, "kube-proxy-") {
			list = append(list, arguments(&p.Spec))
		}
	}
	for _, n := range f.Linux() { // a part of the process of k3s
		if args := k3sArguments(n); args != nil && !slices.Contains(args, "--disable-kube-proxy") {
			list = append(list, args)
		}
	}
	return list
}

// configuredMode returns the mode in the ConfigMap of kube-proxy; empty: there is none.
func (f *Facts) configuredMode() string {
	for _, name := range []string{"kube-proxy", "kube-proxy-config"} { // of kubeadm, and of EKS; their keys differ
		for _, text := range f.ConfigMaps["kube-system/"+name] {
			var c struct{ Kind, Mode string }
			if yaml.Unmarshal([]byte(text), &c) == nil && c.Kind == "KubeProxyConfiguration" {
				return cmp.Or(c.Mode, defaultMode)
			}
		}
	}
	return ""
}

// k3sArguments returns the command line of k3s on a node, with the flags of kube-proxy as k3s has them; nil: another node.
func k3sArguments(n *corev1.Node) []string {
	text, is := n.Annotations["k3s.io/node-args"]
	if !is || !strings.Contains(n.Status.NodeInfo.KubeletVersion, "+k3s") {
		return nil
	}
	args := []string{}
	_ = json.Unmarshal([]byte(text), &args) // of a text that is no list nothing is known
	for i := range args {
		if i > 0 && args[i-1] == "--kube-proxy-arg" {
			args[i] = "--" + args[i]
		}
	}
	return args
}

// readCilium reads Cilium's settings, and its version from the tag of its image.
func (f *Facts) readCilium(d *appsv1.DaemonSet) *cilium {
	var c cilium
	c.settings, c.configured = f.ConfigMaps[d.Namespace+"/cilium-config"]
	for i := range d.Spec.Template.Spec.Containers {
		found := regexp.MustCompile(`:v?1\.([0-9]+)\.[0-9][^@]*`).FindStringSubmatch(d.Spec.Template.Spec.Containers[i].Image)
		if d.Spec.Template.Spec.Containers[i].Name == "cilium-agent" && found != nil {
			c.version = strings.TrimPrefix(strings.TrimPrefix(found[0], ":"), "v")
			c.minor, _ = strconv.Atoi(found[1]) // digits; one that is too large is newer than any that is known
		}
	}
	return &c
}

// antreaProxiesAll reports whether Antrea's configuration has antreaProxy.proxyAll. The name of its ConfigMap may end with a hash.
func (f *Facts) antreaProxiesAll() bool {
	for name, data := range f.ConfigMaps {
		var c struct {
			AntreaProxy struct {
				ProxyAll bool `json:"proxyAll"`
			} `json:"antreaProxy"`
		}
		if strings.HasPrefix(name, "kube-system/antrea-config") && yaml.Unmarshal([]byte(data["antrea-agent.conf"]), &c) == nil && c.AntreaProxy.ProxyAll {
			return true
		}
	}
	return false
}

// IsCilium reports whether a DaemonSet runs Cilium's agent.
func IsCilium(d *appsv1.DaemonSet) bool {
	return slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "cilium-agent" })
}

// environment returns a variable of a container; empty: none has it.
func environment(d *appsv1.DaemonSet, name string) string {
	for i := range d.Spec.Template.Spec.Containers {
		for _, v := range d.Spec.Template.Spec.Containers[i].Env {
			if v.Name == name {
				return v.Value
			}
		}
	}
	return ""
}

// arguments returns the command lines of all containers. Words of a shell's script are taken apart.
func arguments(p *corev1.PodSpec) (words []string) {
	for i := range p.Containers {
		for _, arg := range slices.Concat(p.Containers[i].Command, p.Containers[i].Args) {
			words = append(words, strings.Fields(arg)...)
		}
	}
	return words
}

// flag returns the value of a flag, which one or two hyphens begin; empty: it is not given.
func flag(words []string, name string) string {
	for i, word := range words {
		word, isFlag := strings.CutPrefix(word, "-")
		key, value, has := strings.Cut(strings.TrimPrefix(word, "-"), "=")
		switch {
		case !isFlag || key != name:
		case has:
			return strings.Trim(value, `"`)
		case i+1 < len(words) && !strings.HasPrefix(words[i+1], "-"):
			return strings.Trim(words[i+1], `"`)
		default:
			return "true"
		}
	}
	return ""
}
