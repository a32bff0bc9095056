// SPDX-License-Identifier: Apache-2.0

// Command cni is Cilium's plugin that gives a pod its interface.
package main

import (
	"runtime"

	"github.com/cilium/cilium/plugins/cilium-cni/cmd"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	runtime.LockOSThread() // it changes the thread's network namespace
	c := cmd.NewCmd()
	skel.PluginMain(c.Add, c.Check, c.Del, version.PluginSupports("0.4.0", "1.0.0"), "cilium-cni")
}
