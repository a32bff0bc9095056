// SPDX-License-Identifier: Apache-2.0

// Command cni is Cilium's plugin that gives a pod its interface.
package main

import (
	"runtime"

	"github.com/cilium/cilium/plugins/cilium-cni/cmd"
)

func main() {
	runtime.LockOSThread() // it changes the thread's network namespace
	cmd.PluginMain()
}
