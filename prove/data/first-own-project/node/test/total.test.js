import assert from "node:assert/strict";
import { test } from "node:test";
import * as prices from "../src/prices.js";

test("the total of several prices", () => assert.equal(prices.total(["1,250", "3.5"]), 125350));
test("the total of nothing", () => assert.equal(prices.total([]), 0));
