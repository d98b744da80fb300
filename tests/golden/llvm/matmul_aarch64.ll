source_filename = "matmul_0"

declare <4 x float> @llvm.fmuladd.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare <4 x float> @llvm.maximum.v4f32(<4 x float>, <4 x float>)
declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)

define internal void @matmul_0.region0(ptr noalias readonly align 64 %b0, ptr noalias readonly align 64 %b1, ptr noalias align 64 %b2, i64 %begin, i64 %end) nounwind "no-trapping-math"="true" {
entry:
  br label %loop1
loop1:
  %v2 = phi i64 [ %begin, %entry ], [ %v2.next, %loop1.latch ]
  %v9 = mul i64 %v2, 6
  %v10 = getelementptr inbounds float, ptr %b0, i64 %v9
  %v29 = mul i64 %v2, 16
  %v30 = getelementptr inbounds float, ptr %b2, i64 %v29
  br label %loop3
loop3:
  %v4 = phi i64 [ 0, %loop1 ], [ %v4.next, %loop3.latch ]
  %r5 = phi <4 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v18, %loop3.latch ]
  %r6 = phi <4 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v21, %loop3.latch ]
  %r7 = phi <4 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v26, %loop3.latch ]
  %r8 = phi <4 x float> [ splat (float 0x0000000000000000), %loop1 ], [ %v27, %loop3.latch ]
  %v11 = getelementptr inbounds float, ptr %v10, i64 %v4
  %v13 = mul i64 %v4, 8
  %v14 = getelementptr inbounds float, ptr %b1, i64 %v13
  %v12 = load float, ptr %v11, align 4
  %v15 = load <4 x float>, ptr %v14, align 32
  %v16 = insertelement <4 x float> poison, float %v12, i64 0
  %v17 = shufflevector <4 x float> %v16, <4 x float> poison, <4 x i32> zeroinitializer
  %v18 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v17, <4 x float> %v15, <4 x float> %r5)
  %v19 = getelementptr inbounds float, ptr %v14, i64 4
  %v20 = load <4 x float>, ptr %v19, align 16
  %v21 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v17, <4 x float> %v20, <4 x float> %r6)
  %v22 = getelementptr inbounds float, ptr %v11, i64 3
  %v23 = load float, ptr %v22, align 4
  %v24 = insertelement <4 x float> poison, float %v23, i64 0
  %v25 = shufflevector <4 x float> %v24, <4 x float> poison, <4 x i32> zeroinitializer
  %v26 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v25, <4 x float> %v15, <4 x float> %r7)
  %v27 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %v25, <4 x float> %v20, <4 x float> %r8)
  br label %loop3.latch
loop3.latch:
  %v4.next = add nuw nsw i64 %v4, 1
  %v4.more = icmp slt i64 %v4.next, 3
  br i1 %v4.more, label %loop3, label %loop3.done
loop3.done:
  %v28 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v18, <4 x float> splat (float 0x0000000000000000))
  store <4 x float> %v28, ptr %v30, align 64
  %v31 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v21, <4 x float> splat (float 0x0000000000000000))
  %v32 = getelementptr inbounds float, ptr %v30, i64 4
  store <4 x float> %v31, ptr %v32, align 16
  %v33 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v26, <4 x float> splat (float 0x0000000000000000))
  %v34 = getelementptr inbounds float, ptr %v30, i64 8
  store <4 x float> %v33, ptr %v34, align 32
  %v35 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v27, <4 x float> splat (float 0x0000000000000000))
  %v36 = getelementptr inbounds float, ptr %v30, i64 12
  store <4 x float> %v35, ptr %v36, align 16
  br label %loop1.latch
loop1.latch:
  %v2.next = add nuw nsw i64 %v2, 1
  %v2.more = icmp slt i64 %v2.next, %end
  br i1 %v2.more, label %loop1, label %loop1.done
loop1.done:
  ret void
}

define hidden void @matmul_0.region0.entry(ptr %buffers, i64 %begin, i64 %end) nounwind {
entry:
  %slot0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer2 = load ptr, ptr %slot2, align 8
  call void @matmul_0.region0(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  ret void
}

define i32 @matmul_0(ptr %buffers, ptr %workspace, ptr %pool) nounwind {
entry:
  %closure = alloca [3 x ptr], align 8
  %argument0.0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0.0 = load ptr, ptr %argument0.0, align 8
  %slot0.0 = getelementptr inbounds ptr, ptr %closure, i64 0
  store ptr %buffer0.0, ptr %slot0.0, align 8
  %argument0.1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer0.1 = load ptr, ptr %argument0.1, align 8
  %slot0.1 = getelementptr inbounds ptr, ptr %closure, i64 1
  store ptr %buffer0.1, ptr %slot0.1, align 8
  %argument0.2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer0.2 = load ptr, ptr %argument0.2, align 8
  %slot0.2 = getelementptr inbounds ptr, ptr %closure, i64 2
  store ptr %buffer0.2, ptr %slot0.2, align 8
  %status0 = call i32 @tfb_parallel_for(ptr %pool, ptr @matmul_0.region0.entry, ptr %closure, i64 2)
  %status0.bad = icmp ne i32 %status0, 0
  br i1 %status0.bad, label %status0.stop, label %done0
status0.stop:
  ret i32 %status0
done0:
  ret i32 0
}
