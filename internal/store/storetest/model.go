package storetest

var modelLaws []law
