// SPDX-License-Identifier: Apache-2.0

// Command conformance runs specs of the end-to-end tests of Kubernetes, those of its network suite that --ginkgo.focus and
// --ginkgo.skip leave. With the only argument images it prints the images that their pods use.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	imageutils "k8s.io/kubernetes/test/utils/image"

	_ "k8s.io/kubernetes/test/e2e/feature" // the labels of specs
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/network"
)

// verdict is what Ginkgo needs of a testing.T.
type verdict struct{ failed bool }

func (v *verdict) Fail() { v.failed = true }

func main() {
	if len(os.Args) == 2 && os.Args[1] == "images" {
		fmt.Println(imageutils.GetE2EImage(imageutils.Agnhost))
		fmt.Println(imageutils.GetE2EImage(imageutils.GlibcDnsTesting))
		return
	}
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	framework.TestContext.IPFamily = "ipv4"
	gomega.RegisterFailHandler(framework.Fail)
	var v verdict
	ginkgo.RunSpecs(&v, "Kubernetes")
	if v.failed {
		os.Exit(1)
	}
}
