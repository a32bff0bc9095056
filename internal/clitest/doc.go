// SPDX-License-Identifier: Apache-2.0

// Package clitest checks the command lines of the programs, and those in the pages.
package clitest
